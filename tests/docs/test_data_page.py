"""The page on data sets says of each what the catalogue knows."""

from __future__ import annotations

import pytest

from fedvlp.data.catalog import DESCRIPTIONS
from fedvlp.data.catalog.coop import COOP_DATA_SETS
from fedvlp.data.catalog.small_images import SMALL_IMAGE_DATA_SETS
from tests.helpers.documents import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = {row[1]: row for row in CELLS}


@pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)
def test_classes_and_images(known):
    row = ROWS[f"`{known.config}`"]
    images = "" if known.images is None else f"{known.images:,}"
    # Behind the config stand the domains, where there are several.
    assert [f"{len(known.class_names):,}", images] in (row[2:4], row[3:5])


@pytest.mark.parametrize("known", [*COOP_DATA_SETS, *SMALL_IMAGE_DATA_SETS], ids=lambda known: known.name)
def test_splits_and_licences(known):
    *_, split, licence = ROWS[f"`{known.config}`"]
    said = []
    for form in known.forms:
        for sizes in form.split_counts.values():
            said.append(f"{form.title} {'/'.join(f'{size:,}' for size in sizes.values())}")
    assert split.split("; ") == list(dict.fromkeys(said))
    assert licence == known.licence
