"""Every value of a summary, left out or of another sort: one line, or a table."""

from __future__ import annotations

import copy
import json

import pytest

from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.results.record import OPTIONAL_VALUES, VALUES
from fedvlp.utils.errors import UserError
from tests.results.test_record import write_run
from tests.results.test_record_fields import SUMMARY

LEFT_OUT = object()
OTHERS = (LEFT_OUT, None, "x", [], {}, [1], {"a": 1}, -1, 2.5, float("nan"), True)
LISTS = ("held_out", "data.domains", "data.classes", "data.new_classes")


def places(value, place=()):
    """The path to each value anywhere in a summary."""
    if place:
        yield place
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*place, name))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*place, index))


def changed(summary, place, value):
    """A summary with one value replaced or left out."""
    summary = copy.deepcopy(summary)
    holder = summary
    for name in place[:-1]:
        holder = holder[name]
    if value is LEFT_OUT:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return summary


@pytest.mark.parametrize("place", list(places(SUMMARY)), ids=lambda place: "/".join(map(str, place)))
def test_a_wrong_value_is_one_line_or_a_table(tmp_path, capsys, place):
    path = write_run(tmp_path / "run") / "summary.json"
    for value in OTHERS:
        path.write_text(json.dumps(changed(SUMMARY, place, value)))
        for form in ("table", "csv"):
            code = main(["compare", str(tmp_path), "--format", form])
            printed = capsys.readouterr()
            assert code in (0, 1, 2)
            assert "Traceback" not in printed.err
            assert printed.out or printed.err


@pytest.mark.parametrize("name", VALUES)
def test_a_summary_without_a_value_says_which(tmp_path, name):
    path = write_run(tmp_path / "run") / "summary.json"
    path.write_text(json.dumps(changed(SUMMARY, name.split("."), LEFT_OUT)))
    with pytest.raises(UserError, match=f"lacks {name}"):
        load_record(tmp_path / "run")


@pytest.mark.parametrize("name", [*VALUES, *OPTIONAL_VALUES])
def test_a_value_of_another_sort_is_named_and_not_shown(tmp_path, name):
    path = write_run(tmp_path / "run") / "summary.json"
    wrong = {"secret": [[]]} if name in LISTS else ["secret"]
    path.write_text(json.dumps(changed(SUMMARY, name.split("."), wrong)))
    with pytest.raises(UserError, match=rf"expected {name} to") as error:
        load_record(tmp_path / "run")
    assert "secret" not in str(error.value)
