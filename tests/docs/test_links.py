"""Every link of every page leads to a file."""

from __future__ import annotations

import pytest

from tests.helpers.documents import ROOT, Document

FOLDERS = ("benchmarks", "docs", "examples", "experiments")
PAGES = sorted(ROOT.glob("*.md"))
for folder in FOLDERS:
    PAGES += sorted((ROOT / folder).rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(path):
    assert not [link for link in Document(path).links() if not (path.parent / link).exists()]
