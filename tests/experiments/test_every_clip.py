"""Training with each of open_clip's architectures: the table of all, and some repeated measurements."""

import csv

import open_clip
import pytest

from experiments.every_clip.run import METHODS, RESULTS, row
from experiments.every_clip.table import PAGE, page

with RESULTS.open(encoding="utf-8", newline="") as file:
    ROWS = {found["architecture"]: found for found in csv.DictReader(file)}

MEASURED_AGAIN = ("coca_ViT-B-32", "convnext_base", "xlm-roberta-base-ViT-B-32")
NO_VIT = ("ConvNeXt", "FastVit", "ModifiedResNet", "SwinTransformer", "VisionTransformerRelPos")


def test_every_architecture_has_a_row():
    assert set(open_clip.list_models()) <= set(ROWS)


def test_every_architecture_trains_or_has_a_reason():
    for name, found in ROWS.items():
        trained = {group for group in METHODS if found[group] == "yes"}
        assert {"text prompts", "fine-tuning"} <= trained, name
        if found["image tower"] not in NO_VIT:
            assert {"tokens", "patches", "deep prompts"} <= trained, name
        assert {found[group] for group in METHODS} <= {"yes", "no"}, name


@pytest.mark.parametrize("name", MEASURED_AGAIN)
def test_a_row_can_be_measured_again(name):
    assert row(name) == ROWS[name]


def test_the_page_is_generated_from_the_rows():
    assert PAGE.read_text(encoding="utf-8") == page()
