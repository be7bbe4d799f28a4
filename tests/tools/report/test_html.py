"""HTML: all text is escaped, tables say what their cells are of, images are in the page."""

from fedvlp.results.rendered_table import RenderedTable
from fedvlp.tools.report.html import definitions, html_table, picture, tag

EVIL = "<script>alert(\"x\")</script> & 'y'"
SAFE = "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; &#x27;y&#x27;"


def test_text_is_escaped_everywhere():
    table = RenderedTable(EVIL, (EVIL,), (EVIL, "b"), ((EVIL, "1"),), 1, (EVIL,))
    texts = [
        tag("p", EVIL, title=EVIL),
        html_table(table),
        picture(b"", "png", EVIL, EVIL, EVIL),
        definitions([(EVIL, EVIL)]),
    ]
    for text in texts:
        assert "<script" not in text
        assert text.count(SAFE) >= 2
    assert texts[1].count(SAFE) == 6


def test_html_is_not_escaped_twice():
    assert tag("p", tag("b", "<"), " & ") == "<p><b>&lt;</b> &amp; </p>"
    assert tag("img", src="a", aria_label="b", class_="c") == '<img src="a" aria-label="b" class="c">'


def test_table():
    table = RenderedTable(
        "Title", ("above",), ("method", "round", "ink"), (("A^1,b", "last", "5.0^2"),), 2, ("^1 odd", "plain")
    )
    text = html_table(table)
    assert "<caption>Title</caption>" in text
    heads = [("word", "method"), ("word", "round"), ("number", "ink")]
    assert "".join(f'<th scope="col" class="{kind}">{name}</th>' for kind, name in heads) in text
    assert '<th scope="row">A<sup>1,b</sup></th><td class="word">last</td>' in text
    assert '<td class="number">5.0<sup>2</sup></td>' in text
    assert text.startswith('<p class="note">above</p><div class="scroll"')
    assert text.endswith('<p class="note"><sup>1</sup> odd</p><p class="note">plain</p>')


def test_picture():
    text = picture(b"abc", "svg", "Title", "what is drawn", "what is seen")
    assert '<img src="data:image/svg+xml;base64,YWJj" alt="what is seen">' in text
    assert text.startswith('<figure class="chart">')
    assert picture(b"abc", "png", "", "", "").startswith('<figure class="photograph"><div class="scroll"')
    assert "<figcaption><strong>Title.</strong> what is drawn</figcaption>" in text
