"""The page on data sets says of each what the catalogue knows."""

from __future__ import annotations

import pytest

from fedvlp.catalog.description import DESCRIPTIONS
from tests.helpers.documents import ROOT

ONE_DOMAIN = [known for known in DESCRIPTIONS if len(known.domains) == 1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = {row[1]: row for row in CELLS}


@pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)
def test_classes_and_images(known):
    row = ROWS[f"`{known.config}`"]
    images = "" if known.images is None else f"{known.images:,}"
    # Behind the config stand the domains, where there are several.
    assert [f"{len(known.class_names):,}", images] in (row[2:4], row[3:5])


@pytest.mark.parametrize("known", ONE_DOMAIN, ids=lambda known: known.name)
def test_splits_and_licences(known):
    *_, split, licence = ROWS[f"`{known.config}`"]
    said = []
    for form in known.layouts:
        for sizes in form.split_counts.values():
            said.append(f"{form.title} {'/'.join(f'{size:,}' for size in sizes.values())}")
    assert split.split("; ") == list(dict.fromkeys(said))
    assert licence == known.licence
