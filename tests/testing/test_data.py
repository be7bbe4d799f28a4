"""Data sets that break the contract are rejected, and data sets of fedvlp satisfy it."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedvlp.data import ArrayImages, DomainFolders, FederatedDataModule
from fedvlp.testing import ContractError, check_data
from tests.helpers.shapes import unchecked

CLASSES = ["cat", "dog"]


class Noise(FederatedDataModule):
    """Two domains of noise, changed by ``spoil(domains, class_names)``, which returns both."""

    def __init__(self, spoil=lambda *loaded: loaded, **options):
        super().__init__(cache_dir=None, **options)
        self.spoil = spoil

    def load_domains(self):
        domains = {}
        for domain in ("a", "b"):
            pixels = np.random.default_rng(ord(domain)).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
            names = [f"{domain}/{number}" for number in range(12)]
            domains[domain] = ArrayImages(pixels, np.repeat([0, 1], 6), names)
        return self.spoil(domains, list(CLASSES))


def images_with(**attributes):
    """Return a function that sets attributes of domain a."""

    def spoil(domains, class_names):
        for name, value in attributes.items():
            setattr(domains["a"], name, value)
        return domains, class_names

    return spoil


class Grey(ArrayImages):
    def __getitem__(self, index):
        return super().__getitem__(index).convert("L")


def grey(domains, class_names):
    pixels = np.zeros((12, 8, 8, 3), np.uint8)
    return {"a": Grey(pixels, domains["a"].labels, domains["a"].names)}, class_names


def shuffled():
    """Return a function that changes the order of images on every call."""
    generator = np.random.default_rng(0)

    def spoil(domains, class_names):
        names = domains["a"].names
        domains["a"].names = [names[position] for position in generator.permutation(12)]
        return domains, class_names

    return spoil


BROKEN = {
    "not a pair": (lambda domains, names: domains, "must return the images of each domain by name"),
    "no domain": (lambda domains, names: ({}, names), "at least one domain"),
    "number as class": (lambda domains, names: (domains, [3, "dog"]), "class names must be strings"),
    "class twice": (lambda domains, names: (domains, ["dog", "dog"]), r"\['dog'\] are repeated"),
    "class without image": (lambda domains, names: (domains, [*names, "owl"]), r"\['owl'\] have none"),
    "label beyond": (images_with(labels=np.repeat([0, 2], 6)), r"labels must be indices .* got \[2\]"),
    "label's type": (images_with(labels=np.repeat([0, 1], 6).astype(np.int32)), "labels must be int64"),
    "too few labels": (
        images_with(labels=np.repeat([0, 1], 5)),
        r"equal numbers of images, labels and names; got \(12, 10, 12\)",
    ),
    "name twice": (images_with(names=["x"] * 12), "names of images must be distinct"),
    "absolute name": (
        images_with(names=[f"/data/{n}" for n in range(12)]),
        "relative to the data's folder; got .*/data/0",
    ),
    "grey": (grey, "PIL image in RGB"),
    "order": (shuffled(), "same images in the same order"),
    "not images": (lambda domains, names: ({"a": [1, 2]}, names), "must have labels, names, fingerprint"),
}


def test_data_sets_of_fedvlp_satisfy_the_contract(image_root):
    check_data(lambda: Noise(held_out="b"))
    check_data(lambda: DomainFolders(str(image_root), held_out="photo", test_fraction=0.3, cache_dir=None))


def test_the_factory_must_create_a_new_data_set():
    data = Noise()
    with pytest.raises(ContractError, match="returned the same one twice"):
        check_data(lambda: data)
    with pytest.raises(ContractError, match="Expected a FederatedDataModule, got a Image"), unchecked():
        check_data(lambda: Image.new("RGB", (1, 1)))


class Leaky(Noise):
    """Trains on the held-out domain."""

    def __init__(self):
        super().__init__(held_out="b")

    @property
    def source_domains(self):
        return ["a", "b"]


class Restless(Noise):
    """Uses a different split seed for every object."""

    count = 0

    def __init__(self):
        Restless.count += 1
        super().__init__(split_seed=Restless.count)


class Unrepeatable(Noise):
    def train_dataloader(self, client=None, seed=None, once=False):
        Restless.count += 1
        return super().train_dataloader(client, Restless.count)


BROKEN_SPLITS = {
    "split": (Restless, "must always be split the same way"),
    "batches": (Unrepeatable, "same batches for the same seed"),
    "held-out domain": (Leaky, "(nobody may train on a held-out domain; .'b'. have|one role)"),
}
FACTORIES = {**BROKEN_SPLITS, **{name: (partial(Noise, spoil), message) for name, (spoil, message) in BROKEN.items()}}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_data_set_that_breaks_the_contract_is_rejected(name):
    make, message = FACTORIES[name]
    with pytest.raises(ContractError, match=message), unchecked():
        check_data(make)
