"""The page on data sets matches the catalogue, and the page on policies has the figures of other pages."""

import re

from fedvlp.catalog.description import DESCRIPTIONS
from tests.helpers.documents import ROOT, Document

DOCS = ROOT / "docs"
CELLS = [line.strip("|").split("|") for line in Document(DOCS / "data.md").text.splitlines() if line.startswith("| ")]
ROWS = {row[1].strip(): [cell.strip() for cell in row] for row in CELLS}


def test_classes_and_images():
    for description in DESCRIPTIONS:
        row = ROWS[f"`{description.config}`"]
        images = "" if description.images is None else f"{description.images:,}"
        # A column of domains follows the config if there are several.
        assert [f"{len(description.class_names):,}", images] in (row[2:4], row[3:5]), description.name


def test_splits_and_licences():
    for description in DESCRIPTIONS:
        if len(description.domains) > 1:
            continue
        *_, split, licence = ROWS[f"`{description.config}`"]
        splits = []
        for form in description.layouts:
            for sizes in form.split_counts.values():
                splits.append(f"{form.title} {'/'.join(f'{size:,}' for size in sizes.values())}")
        assert split.split("; ") == list(dict.fromkeys(splits)), description.name
        assert licence == description.licence


def test_each_figure_about_updates_was_measured():
    measured = Document(DOCS / "privacy.md").text + Document(ROOT / "experiments" / "privacy" / "README.md").text
    _, _, section = Document(DOCS / "policy.md").text.partition("### What an update can reveal\n")
    section = section.partition("\n### ")[0]
    for figure in re.findall(r"\d+(?:[.,]\d+)+", section):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", measured), figure
