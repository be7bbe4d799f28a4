"""Every link of every page leads to a file."""

from tests.helpers.documents import ROOT, Document

FOLDERS = ("benchmarks", "docs", "examples", "experiments")


def test_links_lead_to_files():
    pages = list(ROOT.glob("*.md"))
    for folder in FOLDERS:
        pages += (ROOT / folder).rglob("*.md")
    links = [(path, link) for path in pages for link in Document(path).links()]
    assert not [(str(path), link) for path, link in links if not (path.parent / link).exists()]
