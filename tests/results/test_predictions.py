"""``predictions.safetensors`` is restored unchanged, and damage is reported; ``confusion.csv`` has the counts."""

from dataclasses import replace

import numpy as np

from fedvlp.results.predictions import confusions, read_predictions, write_predictions
from tests.helpers.predictions import draw

OTHERS = replace(draw(3, seed=2, classes=2), class_names=("new", "neu"), groups=np.int32([0, 4, 0]))
SCORES = {"energy": np.float32([[30.5, 2.0, 7.25]]), "mcm": np.float32([[0.25, 0.5, 0.125]])}
WRITTEN = {
    "zero-shot CLIP": {"held_out/oil paint": draw(7)},
    "last round": {
        "held_out/oil paint": draw(7, 2, clients=("a/b", "c"), seed=1),
        "test/猫": replace(OTHERS, scores=SCORES),
    },
}


def test_predictions_are_restored(tmp_path):
    write_predictions(tmp_path, WRITTEN)
    found = read_predictions(tmp_path)
    assert {row: set(splits) for row, splits in found.items()} == {row: set(each) for row, each in WRITTEN.items()}
    for row, by_split in WRITTEN.items():
        for split, expected in by_split.items():
            again = found[row][split]
            assert (again.clients, again.class_names) == (expected.clients, expected.class_names)
            for name in ("labels", "predicted", "confidence"):
                assert np.array_equal(getattr(again, name), getattr(expected, name))
            assert (again.groups is None) == (expected.groups is None)
    assert found["last round"]["test/猫"].groups.tolist() == [0, 4, 0]
    restored = {name: values.tolist() for name, values in found["last round"]["test/猫"].scores.items()}
    assert restored == {name: values.tolist() for name, values in SCORES.items()}
    assert read_predictions(tmp_path / "nowhere") == {}


def test_confusions_are_counted_over_states_under_the_names_of_the_split():
    frame = confusions(WRITTEN, ["a, b", "c", "d", "e", "f"])
    for row, by_split in WRITTEN.items():
        for split, expected in by_split.items():
            split_rows = frame[(frame["row"] == row) & (frame["split"] == split)]
            assert split_rows["images"].sum() == expected.predicted.size
    assert set(frame[frame["split"] == "test/猫"]["true"]) <= {"new", "neu"}
