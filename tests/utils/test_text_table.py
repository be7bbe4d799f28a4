"""Tables show names of others without letting them break them."""

from fedvlp.utils.text_table import markdown_cell, markdown_table, markdown_text


def test_markdown_cells_hold_no_html_and_no_bars():
    cell = markdown_cell("<img src=x onerror=alert(1)> | & \\| `a`\n")
    assert cell == "&lt;img src=x onerror=alert(1)&gt; \\| &amp; \\\\\\| `a` "
    assert len(markdown_table(["a"], ["---"], [[cell]]).splitlines()) == 3


def test_markdown_texts_keep_bars():
    assert markdown_text("a | <b>") == "a | &lt;b&gt;"
