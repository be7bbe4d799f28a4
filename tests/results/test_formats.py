import re

import pytest

from fedvlp.results.formats import format_tables
from fedvlp.results.latex import SPECIAL, escape
from fedvlp.results.rendered_table import RenderedTable

TABLE = RenderedTable(
    title="A & B",
    lines=("accuracy in %",),
    head=("method", "art_painting^3", "average"),
    rows=(("TRIP^1", "98.1 ± 0.2", "-1.0"), ("a|b", "7.5^2,3", "-")),
    text_columns=1,
    notes=("^1 Said once.", "For all of it."),
)


def test_text_lines_up():
    lines = format_tables([TABLE], "table").splitlines()
    assert lines[:3] == ["A & B", "accuracy in %", ""]
    head, rule = lines[3:5]
    first, second = lines[5:7]
    assert set(rule) == {"-"}
    assert len(rule) == max(map(len, (head, first, second)))
    assert first.startswith("TRIP^1  ")
    assert head.index("average") + len("average") == len(first) == len(second)
    ends = [line.rstrip().rfind(end) + len(end) for line, end in zip(lines[5:7], ("± 0.2", "7.5"), strict=True)]
    assert ends[0] == ends[1]
    assert lines[-2:] == ["^1 Said once.", "For all of it."]


def test_long_lines_are_wrapped():
    text = format_tables([RenderedTable("t", ("word " * 100,), ("a", "b"), (("c", "d"),), 1)], "table")
    assert max(map(len, text.splitlines())) <= 100


def test_markdown_has_as_many_cells_in_every_row():
    lines = [line for line in format_tables([TABLE, TABLE], "markdown").splitlines() if line.startswith("|")]
    assert len(lines) == 8
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[3] == "| a\\|b | 7.5<sup>2,3</sup> | - |"
    assert "* <sup>1</sup> Said once." in format_tables([TABLE], "markdown")


def test_latex_is_escaped_and_balanced():
    text = format_tables([TABLE], "latex")
    assert r"art\_painting\textsuperscript{3} & average \\" in text
    assert r"TRIP\textsuperscript{1} & 98.1 $\pm$ 0.2 & $-$1.0 \\" in text
    assert r"\caption{A \& B. accuracy in \%.}" in text
    assert r"\textsuperscript{1} Said once." in text
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1


@pytest.mark.parametrize("sign", sorted(SPECIAL))
def test_latex_leaves_no_special_sign(sign):
    plain = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\$[^$]*\$", "", escape(f"a{sign}b"))
    assert plain == "ab"
