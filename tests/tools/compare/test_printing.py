"""The same table as text, Markdown and LaTeX."""

import re

import markdown_it
import pandas as pd

from fedvlp.tools.compare.printing import TextTable, format_tables

TABLE = TextTable(
    title="A & B",
    lines=("accuracy in %",),
    frame=pd.DataFrame(
        [["TRIP [1]", "98.1 ± 0.2", "-1.0"], ["a|b", "7.5", "-"]], columns=["method", "art_painting [3]", "average"]
    ),
    notes=("[1] Said once.", "For all of it."),
)


def test_text_is_aligned():
    lines = format_tables([TABLE], "table").splitlines()
    assert lines[:3] == ["A & B", "accuracy in %", ""]
    head, rule, first, second = lines[3:7]
    assert set(rule) == {"-"}
    assert len(rule) == len(head) == len(first) == len(second)
    assert first.startswith("TRIP [1]  ")
    assert lines[-2:] == ["[1] Said once.", "For all of it."]
    long = format_tables([TextTable("t", ("word " * 100,), TABLE.frame)], "table")
    assert max(map(len, long.splitlines())) <= 100


def test_markdown_has_as_many_cells_in_every_row():
    lines = [line for line in format_tables([TABLE, TABLE], "markdown").splitlines() if line.startswith("|")]
    assert len(lines) == 8
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[3] == "| a\\|b | 7.5 | - |"
    assert "* \\[1] Said once." in format_tables([TABLE], "markdown")


NAMES = (
    "![a](https://e.org/a.png)",
    "[b](https://e.org)",
    "<https://e.org>",
    "[c]: https://e.org",
    "www.e.org",
    "\n\n# d",
)


def test_names_make_no_links_images_or_headings_in_markdown():
    frame = pd.DataFrame([[name, "1.0"] for name in NAMES], columns=["method", NAMES[0]])
    text = format_tables([TextTable(NAMES[0], NAMES, frame, notes=NAMES)], "markdown")
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
    kinds = {each.type for token in tokens for each in [token, *(token.children or [])]}
    assert "table_open" in kinds
    assert not kinds & {"image", "link_open", "html_block", "html_inline", "heading_open"}
    # GitHub turns these into links even without brackets.
    assert not re.search(r"(?<!\\)://|www\.", text)


def test_latex_is_escaped_and_balanced():
    text = format_tables([TABLE], "latex")
    assert r"art\_painting [3] & average \\" in text
    assert r"\caption{A \& B. accuracy in \%.}" in text
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    assert text.index("Said once.") > text.index(r"\end{tabular}")
    signs = "&%$#_{}^~\\"
    every = format_tables([TextTable("", (), pd.DataFrame([[f"a{sign}b" for sign in signs]]).add_prefix("x"))], "latex")
    assert not [sign for sign in signs if f"a{sign}b" in every]
