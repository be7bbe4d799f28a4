from __future__ import annotations

import inspect
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedvlp.data.cache import Features, cache_key, load_features, save_features
from tests.helpers.data import batches, same

CPU = torch.device("cpu")


class Counting:
    """Counts the images that it prepares."""

    def __init__(self):
        self.images = 0

    def __call__(self, images):
        self.images += len(images)
        return {"features": images.flatten(1), "weights": images.mean((1, 2, 3)).to(torch.bfloat16)}


def run(module, transform, key="weights"):
    """Encodes everything; returns how many images were prepared, and all training batches."""
    prepare = Counting()
    module.bind(transform, prepare, key)
    module.encode()
    found = []
    for client in module.clients:
        found += batches(module.train_dataloader(client, seed=0))
    return prepare.images, found


@pytest.fixture
def make(arrays, tmp_path):
    return lambda **options: arrays(cache_dir=str(tmp_path), **options)


def files(tmp_path):
    return sorted((tmp_path / "features").iterdir())


def test_a_second_run_prepares_nothing_and_gives_the_same(make, arrays, transform, tmp_path):
    first = run(make(), transform)
    second = run(make(), transform)
    without = run(arrays(cache_dir=None), transform)
    assert (first[0], second[0], without[0]) == (43, 0, 43)
    assert same(first[1], second[1])
    assert same(first[1], without[1])
    assert second[1][0][0]["weights"].dtype == torch.bfloat16
    assert [path.suffix for path in files(tmp_path)] == [".safetensors"] * 3


def test_cached_features_do_not_depend_on_the_split(make, transform):
    run(make(), transform)
    for options in ({"held_out": "a"}, {"split_seed": 3}, {"batch_size": 3, "eval_batch_size": 5}):
        assert run(make(**options), transform)[0] == 0


def counts(module):
    return {name: value for name, value in module.binding.feature_counts().items() if name.endswith("images")}


def test_counts_of_what_was_computed_and_found(make, transform):
    first = make()
    second = make(held_out="a")
    run(first, transform)
    run(second, transform)
    assert counts(first) == {"computed_images": 43, "cached_images": 0}
    assert counts(second) == {"computed_images": 0, "cached_images": 43}
    took = first.binding.feature_counts()
    saved = second.binding.feature_counts()
    assert took["saved_seconds"] == saved["computed_seconds"] == 0
    assert saved["saved_seconds"] == pytest.approx(took["computed_seconds"], abs=0.002)


def test_few_shots_share_the_features_of_the_whole_domain(make, transform):
    options = {"validation_fraction": 0.5, "held_out": "b"}
    run(make(**options), transform)
    for shots in (1, 2):
        assert run(make(**options, shots=shots), transform)[0] == 0


def test_few_images_are_prepared_alone(arrays, transform, tmp_path):
    class Larger(arrays):
        counts = {"a": (20, 20, 20), "b": (4, 4, 4)}  # noqa: RUF012

    count, _ = run(Larger(shots=1, validation_fraction=0.05, cache_dir=str(tmp_path)), transform)
    assert count == 6 + 12  # one of each class trains and one validates; of 12 images that is no small part


def test_two_at_once_compute_once(make, transform):
    """Locks are between open files, so threads meet them as processes do."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: run(make(), transform), range(2)))
    assert sum(count for count, _ in found) == 43
    assert same(found[0][1], found[1][1])


def test_another_key_transform_or_image_is_another_entry(make, transform, tmp_path):
    run(make(), transform)
    assert run(make(), transform, key="other weights")[0] == 43
    assert run(make(), lambda image: transform(image) + 1)[0] == 43
    module = make()
    module._images["a"].arrays[0] += 1
    assert run(module, transform)[0] == 22
    assert len(files(tmp_path)) == 3 + 3 + 3 + 1


def test_the_key_of_a_transform_is_not_its_address(arrays, transform):
    images = arrays().load_domains()[0]["a"]

    def key(of):
        return cache_key("", of, images, np.asarray([0]), CPU)

    class Shown:
        def __init__(self, text):
            self.text = text

        def __call__(self, image):
            return transform(image)

        def __repr__(self):
            return self.text

    assert key(Shown("<function rgb at 0x7f01>")) == key(Shown("<function rgb at 0x7f02>"))
    assert key(Shown("Resize(224)")) != key(Shown("Resize(336)"))


def test_the_key_of_features_follows_all_that_they_depend_on(arrays, transform, monkeypatch):
    images, others = (arrays().load_domains()[0][name] for name in "ab")
    given = {"key": "weights", "transform": transform, "images": images, "rows": np.asarray([4, 1]), "device": CPU}
    changes = {
        "key": "other weights",
        "transform": lambda image: transform(image),
        "images": others,
        "rows": np.asarray([1, 4]),
        "device": torch.device("meta"),
    }
    assert list(inspect.signature(cache_key).parameters) == list(given) == list(changes)
    keys = [cache_key(**given), *(cache_key(**(given | {name: value})) for name, value in changes.items())]
    for module in (torch, PIL):
        with monkeypatch.context() as patched:
            patched.setattr(module, "__version__", "0.0.0")
            keys.append(cache_key(**given))
    assert len(set(keys)) == len(keys) == 8
    assert cache_key(**given) == keys[0]


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped", "rows"])
def test_a_damaged_file_is_computed_again(make, transform, tmp_path, caplog, damage):
    _, before = run(make(), transform)
    path = max(files(tmp_path), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(content[:-10])
    elif damage == "text":
        path.write_text("nonsense")
    elif damage == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        save_file({name: tensor[:-1].contiguous() for name, tensor in load_file(path).items()}, path)
    with caplog.at_level(logging.WARNING):
        count, again = run(make(), transform)
    assert count == 22
    assert same(before, again)
    assert "computing them again" in caplog.text
    assert run(make(), transform)[0] == 0


def test_several_writers_leave_one_whole_file(tmp_path):
    features = Features({"features": torch.arange(1000.0).view(10, 100)}, seconds=2.5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: save_features(tmp_path / "x" / "a.safetensors", features), range(12)))
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["a.safetensors"]
    found = load_features(tmp_path / "x" / "a.safetensors", 10, CPU)
    assert found is not None
    assert torch.equal(found.tensors["features"], features.tensors["features"])
    assert (found.seconds, found.is_cached) == (2.5, True)


def test_a_disk_that_refuses_costs_a_warning_only(arrays, transform, tmp_path, caplog):
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        count, found = run(arrays(cache_dir=str(tmp_path / "file")), transform)
    assert count == 43
    assert len(found) > 0
    assert "continuing without it" in caplog.text


def test_augmentation_keeps_evaluation_images_alone(make, transform):
    module = make(augmentation="crop_flip")
    prepare = Counting()
    module.bind(transform, prepare, train_transform=transform)
    module.encode()
    assert prepare.images == sum(split.num_examples for split in module.evaluation_splits())


def summary(build, method, *arguments):
    command = build(method, "--trainer.rounds=1", *arguments)
    command.trainer.fit(command.model, command.datamodule)
    return json.loads((command.trainer.folder / "summary.json").read_text())


def images_in(summary):
    return summary["features"]["computed_images"], summary["features"]["cached_images"]


def test_runs_that_differ_in_seed_domain_or_method_share_features(build, capsys):
    assert images_in(summary(build, "promptfl")) == (54, 0)
    assert "came from the cache" not in capsys.readouterr().out
    again = summary(build, "promptfl", "--seed_everything=3", "--data.held_out=ink")
    assert images_in(again) == (0, 54)
    assert again["features"]["computed_seconds"] == 0 < again["features"]["saved_seconds"]
    saved = f"which saved {again['features']['saved_seconds']:.1f} s"
    assert f"features of 54 images came from the cache, {saved}" in capsys.readouterr().out
    assert images_in(summary(build, "single_domain")) == (0, 54)
    assert images_in(summary(build, "promptfl", "--model.kl_weight=0.5")) == (0, 54)


def test_a_visual_method_learns_the_same_from_decoded_images(build, tmp_path):
    without, cached = (
        summary(build, "fed_dpt", f"--data.cache_images={wanted}", "--trainer.local.steps=1")
        for wanted in (False, True)
    )
    assert without["accuracy"] == cached["accuracy"]
    assert len(list((tmp_path / "cache" / "images").glob("*.npy"))) == 3
    assert not (tmp_path / "cache" / "features").exists()


def file_at(address):
    """The file that is mapped to an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[-1]
    return None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows what is mapped")
def test_features_are_mapped_from_the_file_and_not_held(make, transform, tmp_path):
    """Both when they were just computed and when they were found."""
    for _ in range(2):
        module = make()
        run(module, transform)
        places = [features.tensors["features"].data_ptr() for _, features in module.binding.features.values()]
        assert {file_at(place) for place in places} == {str(path) for path in files(tmp_path)}
