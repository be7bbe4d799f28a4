"""Features and decoded images are computed once per image, and cached results are found again."""

import inspect
import logging
import os
import pickle
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL
import pytest
import torch
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, RandomHorizontalFlip, Resize, ToTensor, v2

from fedvlp.data import DomainFolders, FolderImages
from fedvlp.data.cache import DecodedImages, cache_key, fixed_steps
from fedvlp.utils import files as disk
from tests.helpers.data import batches, same

CPU = torch.device("cpu")
TRANSFORM = Compose([Resize(6), CenterCrop(6), ToTensor()])


class Counting:
    """Counts the encoded images."""

    def __init__(self):
        self.images = 0

    def __call__(self, images):
        self.images += len(images)
        return {"features": images.flatten(1), "weights": images.mean((1, 2, 3)).to(torch.bfloat16)}


def run(data, transform, key="weights"):
    """Encode everything; return the number of encoded images and all training batches."""
    precompute = Counting()
    data.bind(transform, precompute, key)
    data.encode()
    return precompute.images, list(
        chain.from_iterable(batches(data.train_dataloader(client, seed=0)) for client in data.clients)
    )


@pytest.fixture
def make(arrays, tmp_path):
    return lambda **options: arrays(**{"cache_dir": str(tmp_path), **options})


def feature_files(tmp_path):
    return sorted((tmp_path / "features").iterdir())


def test_a_second_run_encodes_nothing_and_gives_the_same(make, arrays, transform, tmp_path):
    first = run(make(), transform)
    second = run(make(), transform)
    without = run(arrays(cache_dir=None), transform)
    assert (first[0], second[0], without[0]) == (43, 0, 43)
    assert same(first[1], second[1])
    assert same(first[1], without[1])
    assert second[1][0][0]["weights"].dtype == torch.bfloat16
    assert [path.suffix for path in feature_files(tmp_path)] == [".safetensors"] * 3


def test_other_splits_of_the_same_images_share_features(make, transform):
    run(make(validation_fraction=0.5), transform)
    for options in ({"held_out": "a"}, {"split_seed": 3}, {"batch_size": 3, "eval_batch_size": 5}):
        assert run(make(validation_fraction=0.5, **options), transform)[0] == 0


def test_another_key_transform_or_image_is_another_entry(make, transform, tmp_path):
    run(make(), transform)
    assert run(make(), transform, key="other weights")[0] == 43
    assert run(make(), lambda image: transform(image) + 1)[0] == 43
    data = make()
    data.images["a"].arrays[0] += 1
    assert run(data, transform)[0] == 22
    assert len(feature_files(tmp_path)) == 3 + 3 + 3 + 1


def test_the_key_of_features_depends_on_all_inputs(arrays, transform, monkeypatch):
    images, others = (arrays().load_domains()[0][name] for name in "ab")
    options = {"key": "weights", "transform": transform, "images": images, "rows": np.asarray([4, 1]), "device": CPU}
    changes = {
        "key": "other weights",
        "transform": lambda image: transform(image),
        "images": others,
        "rows": np.asarray([1, 4]),
        "device": torch.device("meta"),
    }
    assert list(inspect.signature(cache_key).parameters) == list(options) == list(changes)
    keys = [cache_key(**options), *(cache_key(**(options | {name: value})) for name, value in changes.items())]
    for module in (torch, PIL):
        with monkeypatch.context() as patched:
            patched.setattr(module, "__version__", "0.0.0")
            keys.append(cache_key(**options))
    assert len(set(keys)) == len(keys) == 8
    assert cache_key(**options) == keys[0]


def test_damaged_features_are_computed_again_and_a_disk_that_refuses_costs_a_warning(make, transform, tmp_path, caplog):
    _, before = run(make(), transform)
    path = max(feature_files(tmp_path), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING):
        count, again = run(make(), transform)
    assert count == 22
    assert same(before, again)
    assert "computing them again" in caplog.text
    assert run(make(), transform)[0] == 0
    (tmp_path / "file").touch()
    assert run(make(cache_dir=str(tmp_path / "file")), transform)[0] == 43
    assert "continuing without it" in caplog.text


def file_at(address):
    """Find the file that is mapped to an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[-1]
    return None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows what is mapped")
def test_features_are_mapped_from_the_file_and_not_held(make, transform, tmp_path):
    """Both after computing them and after reading them from the cache."""
    for _ in range(2):
        data = make()
        run(data, transform)
        features = data.loaders[""].features.values()
        addresses = [each["features"].data_ptr() for each in features]
        assert {file_at(address) for address in addresses} == {str(path) for path in feature_files(tmp_path)}


def decoding(tree, tmp_path, cache="cache", **options):
    """Make, bind and encode a data module of image files."""
    data = DomainFolders(str(tree), **{"batch_size": 3, "cache_dir": str(tmp_path / cache), **options})
    random = Compose([RandomHorizontalFlip(), Resize(6), CenterCrop(6), ToTensor()])
    data.bind(TRANSFORM, train_transform=random)
    data.encode()
    return data


def all_batches(data):
    loaders = [data.train_dataloader(client, seed=0) for client in data.clients]
    return list(chain.from_iterable([*loaders, *(split.loader for split in data.evaluation_splits())]))


def image_files(tmp_path, cache="cache"):
    return sorted((tmp_path / cache / "images").glob("*.npy"))


@pytest.mark.parametrize("augmentation", ["none", "crop_flip"])
def test_batches_are_the_same_with_decoded_images_and_without(tree, tmp_path, reads, augmentation):
    """Augmented training images are decoded each time, all others once."""
    options = {"augmentation": augmentation}
    plain = all_batches(decoding(tree, tmp_path, cache_images=False, **options))
    assert image_files(tmp_path) == []
    reads.clear()
    first = decoding(tree, tmp_path, **options)
    measured = sum(split.num_examples for split in first.evaluation_splits())
    assert len(reads) == (24 if augmentation == "none" else measured)
    again = decoding(tree, tmp_path, **options)
    reads.clear()
    assert same(plain, all_batches(first))
    assert same(plain, all_batches(again))
    assert len(reads) == (0 if augmentation == "none" else 2 * (24 - measured))
    assert len(image_files(tmp_path)) == 3


@pytest.fixture
def folder(tmp_path, save):
    for seed in range(6):
        save(tmp_path / f"{seed}.png", seed=seed, size=8 + seed)
    return tmp_path


def decoded_of(folder, transform=TRANSFORM, rows=range(6)):
    paths = sorted(folder.glob("*.png"))
    images = FolderImages(paths, [path.name for path in paths], range(len(paths)))
    return DecodedImages(images, np.asarray(rows), fixed_steps(transform)[0], folder / "cache")


def pixels(images):
    return [np.asarray(images[row]).tolist() for row in range(len(images.rows))]


def test_decoded_images_are_those_of_the_files(folder):
    decoded = decoded_of(folder, rows=[1, 2, 5])
    assert decoded.make("decoding")
    expected = [np.asarray(decoded.steps(decoded.images[row])).tolist() for row in (1, 2, 5)]
    assert pixels(decoded) == pixels(pickle.loads(pickle.dumps(decoded))) == expected
    assert decoded.labels.tolist() == [1, 2, 5]
    assert [path.name for path in (folder / "cache").iterdir()] == [decoded.path.name]  # no lock and no temporary file


def test_the_key_of_decoded_images_follows_steps_rows_and_files(folder):
    first = decoded_of(folder).path
    assert decoded_of(folder, Compose([Resize(6), CenterCrop(6), RandomHorizontalFlip(), ToTensor()])).path == first
    others = {decoded_of(folder, Compose([Resize(7), CenterCrop(6), ToTensor()])).path}
    others.add(decoded_of(folder, Compose([Resize(6, InterpolationMode.BICUBIC), CenterCrop(6)])).path)
    others.add(decoded_of(folder, rows=range(5)).path)
    os.utime(folder / "0.png", ns=(1, 1))
    others.add(decoded_of(folder).path)
    assert len(others | {first}) == 5


def test_fixed_steps(clip):
    steps, rest = fixed_steps(clip.preprocess)
    assert [type(step).__name__ for step in steps.transforms[:2]] == ["Resize", "CenterCrop"]
    assert [*steps.transforms, *rest.transforms] == clip.preprocess.transforms
    assert fixed_steps(clip.train_preprocess) is None
    assert fixed_steps(Compose([Resize((4, 7)), ToTensor()])) is not None
    assert fixed_steps(Compose([Resize(4), ToTensor()])) is None  # sizes follow the images
    assert fixed_steps(Compose([RandomHorizontalFlip(), CenterCrop(4)])) is None
    assert fixed_steps(v2.CenterCrop(4)) is None


def test_a_full_disk_or_a_damaged_image_is_a_warning_and_files_are_read(folder, caplog, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with caplog.at_level(logging.WARNING):
        assert not decoded_of(folder).make("decoding")
    assert "1 kB are needed, 0 kB are free" in caplog.text
    assert "data.cache_images=false" in caplog.text
    monkeypatch.undo()
    decoded = decoded_of(folder)
    (folder / "2.png").write_text("nonsense")
    assert not decoded.make("decoding")
    assert "cannot identify image file" in caplog.text
    assert list((folder / "cache").iterdir()) == []
