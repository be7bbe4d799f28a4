"""Classes of image files by their folders: which layouts say them, and which say why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedvlp.data.domain_folders import FolderLabels, folder_labels
from fedvlp.data.files.images import image_paths
from tests.helpers.predictions import draw

NAMES = ["alarm clock", "Owl", "t shirt"]


@pytest.fixture
def lay_out(tmp_path, monkeypatch):
    """Returns a function that writes empty files and returns what is known of those below some folders."""
    monkeypatch.chdir(tmp_path)

    def make(files, folders=("photos",), names=NAMES):
        for file in files:
            path = Path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return folder_labels(image_paths(list(folders)), list(folders), names)

    return make


def test_class_folders_and_domains_of_class_folders(lay_out):
    found = lay_out(["photos/Alarm_Clock/1.png", "photos/owl/deep/er/2.png", "photos/T-shirt/3.png"])
    assert found == FolderLabels((0, 2, 1), ("photos",) * 3)  # capitals come first
    found = lay_out(["drawn/ink/owl/1.png", "drawn/oil/owl/2.png", "drawn/oil/alarm clock/3.png"], ["drawn"])
    assert found == FolderLabels((1, 0, 1), ("ink", "oil", "oil"))
    both = lay_out([], ["photos", "drawn/ink"])
    assert both == FolderLabels((0, 2, 1, 1), ("photos",) * 3 + ("ink",))


def test_folders_of_no_class_are_named_where_most_are_classes(lay_out):
    found = lay_out(["photos/owl/1.png", "photos/owl/2.png", "photos/owl/3.png", "photos/eel/4.png", "photos/5.png"])
    assert found == FolderLabels(others=(".", "eel"))
    assert lay_out(["new/1.png", "new/sub/2.png"], ["new"]) == FolderLabels()
    assert lay_out([], ["photos/owl"]) == FolderLabels()  # the folder given says nothing
    assert lay_out([], ["photos/owl/1.png"]) == FolderLabels()


def test_folders_do_not_tell_classes_of_the_same_letters_apart(lay_out):
    assert lay_out(["photos/owl/1.png"], names=["owl", "Owl"]) == FolderLabels()


def test_predictions_are_divided_by_domain():
    predictions = draw(4)
    found = FolderLabels((1, 0, 1, 2), ("ink", "oil", "ink", "oil")).by_domain(predictions)
    assert list(found) == ["ink", "oil"]
    assert found["oil"].labels.tolist() == [0, 2]
    assert np.array_equal(found["ink"].predicted, predictions.predicted[:, [0, 2]])
    assert np.array_equal(found["oil"].confidence, predictions.confidence[:, [1, 3]])
