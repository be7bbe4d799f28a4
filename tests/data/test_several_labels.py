"""Data sets of files with several labels per image: checks, splits, groups, and the sets in tables."""

import numpy as np
import pytest

from fedvlp.data.listed import ImageFile, ListedImages
from tests.helpers.data import refused

SETS = {"a": ["dog|tree", "dog", "", "?cat|dog", "tree"], "b": ["dog", "", "dog", "tree", "bird"]}


@pytest.fixture
def listed(tmp_path, save):
    """Make a data set of files with the sets of labels of each domain."""

    class Listed(ListedImages):
        several_labels = True

        def scan(self):
            return {domain: [self.file(domain, *entry) for entry in enumerate(sets)] for domain, sets in SETS.items()}

        def file(self, domain, row, labels):
            path = save(tmp_path / f"{domain}{row}.png", seed=10 * ord(domain) + row)
            return ImageFile(domain, labels, path.name, str(path))

    def make(**options):
        return Listed(str(tmp_path), cache_dir=None, **options)

    return make


def labels_of(data, name):
    """List the labels that an image's targets have."""
    names, targets = data._label_targets
    for images in data.images.values():
        if name in images.names:
            row = targets[images.labels[images.names.index(name)]]
            return {label: value for label, value in zip(names, row.tolist(), strict=True) if value}
    return None


def test_domains_may_lack_labels_and_sets(listed):
    data = listed()
    data.prepare_data()
    assert data.class_names == ["bird", "cat", "dog", "tree"]
    assert data.method_names[-1] == "¬image"
    assert labels_of(data, "a0.png") == {"dog": 1, "tree": 1}
    assert labels_of(data, "a2.png") == {}
    assert np.isnan(labels_of(data, "a3.png")["cat"])


def test_spellings_are_compared_by_label(listed, monkeypatch):
    monkeypatch.setitem(SETS, "b", ["Dog|tree", "?Dog", "dog", "tree", "bird"])
    refused(listed(), "'dog', 'Dog' are one class in 2 spellings")
    data = listed(merge_spellings=True)
    assert data.class_names == ["bird", "cat", "dog", "tree"]
    assert labels_of(data, "b0.png") == {"dog": 1, "tree": 1}
    assert np.isnan(labels_of(data, "b1.png")["dog"])


def test_unreadable_images_are_skipped_with_their_sets(listed, tmp_path):
    data = listed(on_bad_image="skip")
    _ = data._loaded
    (tmp_path / "b4.png").write_bytes(b"no image")
    data.prepare_data()
    assert len(data.images["b"]) == 4
    assert data.class_names == ["bird", "cat", "dog", "tree"]
