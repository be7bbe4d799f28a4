"""No cell is a formula, and every number stays one."""

import pytest

from fedvlp.utils.csv_cells import csv_cell, csv_row


@pytest.mark.parametrize("text", ["=HYPERLINK(0)", "+1+1", "-2+3", "@sum", "\tx", "\r=1", "-", "-1_0", "=", "+ 1"])
def test_what_begins_as_a_formula_is_text(text):
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-1.5", "+3", "-1e-7", "-inf", -2, 0.5, None, True, "cat", "a=b", "", "'=1"])
def test_numbers_and_names_stay(value):
    assert csv_cell(value) is value


def test_rows():
    assert csv_row(["=a", "-1", "b"]) == ["'=a", "-1", "b"]
