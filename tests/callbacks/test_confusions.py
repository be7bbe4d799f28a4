"""``confusion.csv``: it counts what the accuracies are of, and a run that goes on to its end keeps it."""

from __future__ import annotations

import pytest

from fedvlp.results import load_record


def test_counts_are_those_of_the_accuracies(build):
    parts = build("promptfl", "--trainer.rounds=2", "--data.test_fraction=0.3")
    parts.trainer.fit(parts.model, parts.datamodule)
    record = load_record(parts.trainer.folder)
    for row, accuracies in (("zero-shot CLIP", record.baseline), ("last round", record.last)):
        by_split = record.confusions[row]
        assert by_split.keys() == {name for name in accuracies if name.startswith(("test/", "held_out/"))}
        for name, counted in by_split.items():
            right = sum(images for (true, predicted), images in counted.items() if true == predicted)
            assert 100 * right / counted.total() == pytest.approx(accuracies[name])
    written = (record.folder / "confusion.csv").read_bytes()
    again = build("promptfl", "--trainer.rounds=2", "--data.test_fraction=0.3")
    again.trainer.fit(again.model, again.datamodule, ckpt_path=str(record.folder))
    assert (again.trainer.folder / "confusion.csv").read_bytes() == written
