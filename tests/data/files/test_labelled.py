"""Labels of image files by their folders: layouts that determine classes, and reported folders."""

from pathlib import Path

import numpy as np
import pytest

from fedvlp.data.domain_folders import label_by_folders
from fedvlp.data.files.images import image_paths
from tests.helpers.predictions import draw

NAMES = ["alarm clock", "Owl", "t shirt"]


@pytest.fixture
def lay_out(tmp_path, monkeypatch):
    """Write empty files; return the labels of images in some folders by domain, and the other folders."""
    monkeypatch.chdir(tmp_path)

    def make(files, folders=("photos",), names=NAMES):
        for file in files:
            path = Path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        paths = image_paths(list(folders))
        labelled, others = label_by_folders(draw(len(paths)), paths, list(folders), names)
        return {domain: predictions.labels.tolist() for domain, predictions in labelled.items()}, others

    return make


def test_class_folders_and_domains_of_class_folders(lay_out):
    found = lay_out(["photos/Alarm_Clock/1.png", "photos/owl/deep/er/2.png", "photos/T-shirt/3.png"])
    assert found == ({"photos": [0, 2, 1]}, [])  # capitals come first
    found = lay_out(["drawn/ink/owl/1.png", "drawn/oil/owl/2.png", "drawn/oil/alarm clock/3.png"], ["drawn"])
    assert found == ({"ink": [1], "oil": [0, 1]}, [])
    assert lay_out([], ["photos", "drawn/ink"]) == ({"photos": [0, 2, 1], "ink": [1]}, [])


def test_folders_of_no_class_are_named_where_most_are_classes(lay_out):
    found = lay_out(["photos/owl/1.png", "photos/owl/2.png", "photos/owl/3.png", "photos/eel/4.png", "photos/5.png"])
    assert found == ({}, [".", "eel"])
    assert lay_out(["new/1.png", "new/sub/2.png"], ["new"]) == ({}, [])
    assert lay_out([], ["photos/owl"]) == ({}, [])  # the given folder is not a class folder
    assert lay_out([], ["photos/owl/1.png"]) == ({}, [])


def test_folders_do_not_tell_classes_of_the_same_letters_apart(lay_out):
    assert lay_out(["photos/owl/1.png"], names=["owl", "Owl"]) == ({}, [])


def test_predictions_are_divided_by_domain():
    predictions = draw(4)
    paths = [Path(f"new/{image}/1.png") for image in ("ink/Owl", "oil/alarm clock", "ink/Owl", "oil/t shirt")]
    labelled, _ = label_by_folders(predictions, paths, ["new"], NAMES)
    assert list(labelled) == ["ink", "oil"]
    assert labelled["oil"].labels.tolist() == [0, 2]
    assert np.array_equal(labelled["ink"].predicted, predictions.predicted[:, [0, 2]])
    assert np.array_equal(labelled["oil"].confidence, predictions.confidence[:, [1, 3]])
