"""Tables show names of others without letting them forge anything."""

from fedvlp.utils.text_table import markdown_cell, markdown_table, markdown_text, text_table

FORGED = "cat\n\x1b[2J\u202efedvlp: all is well"


def test_a_row_stays_one_line():
    lines = text_table([["name", "n"], [FORGED, "1"], ["dog", "22"]]).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert all(line.isprintable() for line in lines)


def test_markdown_cells_hold_no_html_and_no_bars():
    cell = markdown_cell("<img src=x onerror=alert(1)> | & \\| `a`\n")
    assert cell == "&lt;img src=x onerror=alert(1)&gt; \\| &amp; \\\\\\| `a`\\\\n"
    assert len(markdown_table(["a"], ["---"], [[cell]]).splitlines()) == 3


def test_markdown_texts_keep_bars():
    assert markdown_text("a | <b>") == "a | &lt;b&gt;"
