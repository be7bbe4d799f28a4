"""Options of data that must be equal to resume a run and to be in the same table, found from signatures.

A new option must change the comparison, or be listed here with the reason for its exception.
"""

from pathlib import Path

import numpy as np
import pytest

from fedvlp.data import ArrayImages, FederatedDataModule, FewClasses
from fedvlp.data.partition import Shards
from fedvlp.runs.descriptions import describe_run
from fedvlp.training.options import RunOptions
from tests.helpers.options import different, options_of, other_value, record
from tests.helpers.toy_federation import Linear

OPTIONS = RunOptions(3, 0, "32-true")

OTHERS = str(Path(__file__).parents[2] / "docs")  # a folder with images
VALUES = {
    "held_out": "b",
    "partition": Shards(4, 3),
    "shots": 2,
    "validation_fraction": 0.375,
    "test_fraction": 0.25,
    "augmentation": "crop_flip",
    "class_names_map": {"dog": "puppy"},
    "cache_dir": None,
    "out_of_distribution": OTHERS,
    "positive_class": "dog",
    "negative_class": "other",
}
NOT_COMPARED = {
    "eval_batch_size": "the result of an image does not depend on its batch",
    "num_workers": "batches are the same for any number",
    "cache_dir": "sets the folder of the cache, and changes no result",
    "cache_images": "like cache_dir",
    "out_of_distribution": "adds a measurement that the summary names; no accuracy depends on it",
    "positive_class": "adds measurements that name it; no accuracy depends on it",
    "negative_class": "only for several labels, where the description names it",
    "class_names_map": "the names are among the options of the method, which are compared",
}
WHERE = {
    "held_out": {"protocol", "split"},
    "batch_size": {"training.batch_size"},
    "partition": {"protocol", "split"},
    "shots": {"protocol", "split"},
    "validation_fraction": {"split"},
    "test_fraction": {"protocol", "split"},
    "split_seed": {"split"},
    "augmentation": {"training.augmentation"},
    "balance_classes": {"training.balance_classes"},
}
OTHER_ROW = {"batch_size", "augmentation", "balance_classes"}
"""Options that may differ between rows of a table; the other options separate tables."""

SAME_TABLE = {"held_out": "a table has a column for each domain that was held out", **NOT_COMPARED}
del SAME_TABLE["class_names_map"]  # different names are different classes


class Noise(FederatedDataModule):
    """Data with two imbalanced domains, and one with few images."""

    name = "noise"
    counts = {"a": (10, 7, 5), "b": (4, 9, 6), "c": (5, 3, 4)}  # noqa: RUF012

    def load_domains(self):
        domains = {}
        for name, counts in self.counts.items():
            labels = np.repeat(np.arange(len(counts)), counts)
            pixels = np.random.default_rng(ord(name)).integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8)
            domains[name] = ArrayImages(pixels, labels, [f"{name}/{i}" for i in range(len(labels))])
        return domains, ["owl", "dog", "cat"]


def described(**options):
    """Describe a run on these data, and the data."""
    data = Noise(**({"held_out": "c", "test_fraction": 0.125} | options))
    return describe_run(Linear(), data, (), OPTIONS.describe()), data.describe()


class FiveClasses(Noise):
    """Data with enough classes for base and new classes."""

    name = "noise of five"
    counts = {"a": (10, 7, 5, 6, 8), "b": (4, 9, 6, 5, 7), "c": (5, 3, 4, 9, 6)}  # noqa: RUF012

    def load_domains(self):
        domains, _ = super().load_domains()
        return domains, ["owl", "dog", "cat", "cow", "hen"]


class Targets(Noise):
    """Another data set, of noise."""

    name = "other noise"


SEEN = {"held_out": None, "test_fraction": 0.25}
OF_PROTOCOLS = {
    "protocol": ({"held_out": "c"}, {"held_out": "c", "protocol": "new_classes_and_domains"}),
    "class_split": (
        {**SEEN, "protocol": "base_to_new", "partition": FewClasses(2)},
        {**SEEN, "protocol": "base_to_new", "partition": FewClasses(2), "class_split": "client"},
    ),
    "targets": (
        {**SEEN, "protocol": "cross_dataset", "targets": [Targets(cache_dir=None)]},
        {**SEEN, "protocol": "cross_dataset", "targets": [Targets(cache_dir=None, test_fraction=0.5)]},
    ),
}
"""Options that need other options: two sets of options that differ only in them."""


@pytest.mark.parametrize("name", OF_PROTOCOLS)
def test_a_run_resumes_and_is_compared_only_with_the_same_protocol(name):
    data = [FiveClasses(**options) for options in OF_PROTOCOLS[name]]
    one, other = (describe_run(Linear(), each, (), OPTIONS.describe()) for each in data)
    assert different(one, other) == {"split"} | ({"protocol"} if name != "targets" else set())
    rows = [record(run, each.describe()) for run, each in zip((one, other), data, strict=True)]
    assert rows[0].settings == rows[1].settings
    assert rows[0].key != rows[1].key


@pytest.mark.parametrize("name", [name for name in options_of(FederatedDataModule) if name not in OF_PROTOCOLS])
def test_a_run_resumes_and_is_compared_only_with_the_same_option(name):
    one, one_data = described()
    other, other_data = described(**{name: other_value(FederatedDataModule, name, VALUES)})
    expected = set() if name in NOT_COMPARED else WHERE[name]
    assert different(one, other) == expected
    rows = record(one, one_data), record(other, other_data)
    assert (rows[0].settings != rows[1].settings) == (name in OTHER_ROW)
    assert (rows[0].key != rows[1].key) == (name not in OTHER_ROW and name not in SAME_TABLE)
