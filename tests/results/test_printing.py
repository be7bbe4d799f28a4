"""The same table as text, Markdown and LaTeX, and the sentence of what was found."""

import re

import pandas as pd
import pytest

from fedvlp.results import find_records
from fedvlp.results.printing import TextTable, finding, format_tables
from fedvlp.results.tables import ranked, tables
from tests.helpers.report_runs import write_run

TABLE = TextTable(
    title="A & B",
    lines=("accuracy in %",),
    frame=pd.DataFrame(
        [["TRIP [1]", "98.1 ± 0.2", "-1.0"], ["a|b", "7.5", "-"]], columns=["method", "art_painting [3]", "average"]
    ),
    notes=("[1] Said once.", "For all of it."),
)


def test_text_lines_up():
    lines = format_tables([TABLE], "table").splitlines()
    assert lines[:3] == ["A & B", "accuracy in %", ""]
    head, rule, first, second = lines[3:7]
    assert set(rule) == {"-"}
    assert len(rule) == len(head) == len(first) == len(second)
    assert first.startswith("TRIP [1]  ")
    assert lines[-2:] == ["[1] Said once.", "For all of it."]


def test_long_lines_are_wrapped():
    frame = pd.DataFrame([["c", "d"]], columns=["a", "b"])
    text = format_tables([TextTable("t", ("word " * 100,), frame)], "table")
    assert max(map(len, text.splitlines())) <= 100


def test_markdown_has_as_many_cells_in_every_row():
    lines = [line for line in format_tables([TABLE, TABLE], "markdown").splitlines() if line.startswith("|")]
    assert len(lines) == 8
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[3] == "| a\\|b | 7.5 | - |"
    assert "* [1] Said once." in format_tables([TABLE], "markdown")


def test_latex_is_escaped_and_balanced():
    text = format_tables([TABLE], "latex")
    assert r"art\_painting [3] & average \\" in text
    assert r"TRIP [1] & 98.1 ± 0.2 & -1.0 \\" in text
    assert r"\caption{A \& B. accuracy in \%.}" in text
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    assert text.index("Said once.") > text.index(r"\end{tabular}")
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1


@pytest.mark.parametrize("sign", "&%$#_{}^~\\")
def test_latex_leaves_no_special_sign(sign):
    table = TextTable(f"a{sign}b", (), pd.DataFrame([[f"c{sign}d"]], columns=["x"]))
    text = format_tables([table], "latex")
    assert f"a{sign}b" not in text
    assert f"c{sign}d" not in text


def table_of(folder):
    (table,) = tables(find_records([folder])[0])
    return table


def write(folder, method, *by_seed, held_out=("photo",)):
    for seed, value in enumerate(by_seed):
        for domain in held_out:
            write_run(folder, [value], domain, seed, method, {})


def test_a_clear_lead(tmp_path):
    write(tmp_path, "PLAN", 45.0, 46.0)
    write(tmp_path, "TRIP", 51.0, 53.0)
    assert finding(table_of(tmp_path)) == (
        "TRIP has the highest result, 52.0 ± 1.4 % mean accuracy on held-out domains (1 of 3) over 2 seeds: "
        "6.5 points above PLAN and 12.0 points above zero-shot CLIP."
    )


@pytest.mark.parametrize(("other", "is_doubtful"), [((50.0, 49.0), True), ((48.0, 49.0), False)])
def test_a_lead_within_the_deviations_says_so(tmp_path, other, is_doubtful):
    """The deviations are 1.41 and 0.71, together 2.12; the leads are 2 and 3."""
    write(tmp_path, "PLAN", *other)
    write(tmp_path, "TRIP", 50.5, 52.5)
    assert (
        "PLAN (within the deviations over seeds, so not shown to differ)" in finding(table_of(tmp_path))
    ) is is_doubtful


def test_one_seed_and_equal_results(tmp_path):
    write(tmp_path, "PLAN", 47.0)
    write(tmp_path, "TRIP", 47.0)
    said = finding(table_of(tmp_path))
    assert "level with TRIP and 7.0 points above zero-shot CLIP; one seed does not show" in said
    assert "over one seed" in said


def test_zero_shot_is_not_beaten(tmp_path):
    write(tmp_path, "TRIP", 38.0, 37.0)
    assert finding(table_of(tmp_path)) == (
        "No trained method is above zero-shot CLIP, which has 40.0 % mean accuracy on held-out domains (1 of 3): "
        "the best of them, TRIP, is 2.5 points behind."
    )


def test_only_complete_rows_are_ranked(tmp_path):
    write(tmp_path, "TRIP", 45.0, held_out=("photo", "sketch"))
    write(tmp_path, "PLAN", 99.0)
    table = table_of(tmp_path)
    assert finding(table).startswith("TRIP has the highest result, 45.0 %")
    assert [method for method, _ in ranked(table).rows if method] == ["TRIP", "zero-shot CLIP", "PLAN"]


def test_last_and_best_are_one_row_where_they_are_equal(tmp_path):
    write_run(tmp_path, [50.0, 52.0], method="TRIP")
    write_run(tmp_path, [48.0, 47.0], method="PLAN")
    rows = ranked(table_of(tmp_path)).rows
    assert rows == [("TRIP", "last, best"), ("PLAN", "last"), ("PLAN", "best"), ("zero-shot CLIP", "-")]
