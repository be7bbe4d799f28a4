"""The page for the data protection officer: its figures are those of the pages that measured them."""

from __future__ import annotations

import re

import pytest

from tests.helpers.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "data_protection.md")
MEASURED = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("privacy.md", "sites.md"))
FIGURES = sorted(set(re.findall(r"\d+(?:[.,]\d+)+", PAGE.text)))


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_was_measured(figure):
    assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", MEASURED)
