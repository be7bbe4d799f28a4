from __future__ import annotations

import logging
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, RandomHorizontalFlip, Resize, ToTensor, v2

from fedvlp.data import DomainFolders, FolderImages
from fedvlp.data.cache import decode_cache
from fedvlp.data.cache.decode_cache import DecodedImages, keep_decoded
from fedvlp.data.cache.fixed_steps import fixed_steps

TRANSFORM = Compose([Resize(6), CenterCrop(6), ToTensor()])
ROWS = np.arange(6)


def paths_of(folder):
    return sorted(folder.glob("*.png"))


def images_of(folder):
    names = [path.name for path in paths_of(folder)]
    return FolderImages(paths_of(folder), names, [0] * len(names))


def decoded_of(folder, transform=TRANSFORM):
    return DecodedImages(images_of(folder), fixed_steps(transform), folder / "cache")


def fill(decoded, rows=ROWS):
    keep_decoded([("photo", decoded, np.asarray(rows))])


def pixels(images):
    return [np.asarray(images[row]).tolist() for row in range(len(images))]


def expected(folder, transform=TRANSFORM):
    steps = fixed_steps(transform)
    return [np.asarray(steps(image)).tolist() for image in images_of(folder)]


@pytest.fixture
def folder(tmp_path, save):
    for seed in range(6):
        save(tmp_path / f"{seed}.png", seed=seed, size=8 + seed)
    return tmp_path


@pytest.fixture
def reads(monkeypatch):
    """Counts the files that are decoded."""
    found, read = [], FolderImages.__getitem__

    def counted(self, row):
        found.append(row)
        return read(self, row)

    monkeypatch.setattr(FolderImages, "__getitem__", counted)
    return found


def test_images_are_those_of_the_files_and_decoded_once(folder, reads):
    wanted = expected(folder)
    reads.clear()
    first = decoded_of(folder)
    fill(first)
    assert sorted(reads) == list(ROWS)
    assert pixels(first) == wanted
    again = decoded_of(folder)
    fill(again)
    assert pixels(again) == pixels(pickle.loads(pickle.dumps(again))) == wanted
    assert len(reads) == 6
    kept = np.load(first.path, mmap_mode="r")
    assert (kept.shape, kept.dtype) == ((6, 6, 6, 3), np.uint8)
    assert len(list(first.path.parent.iterdir())) == 2  # no lock and no temporary file stays


def test_only_what_is_wanted_is_decoded(folder, reads):
    fill(decoded_of(folder), [1, 4])
    assert sorted(reads) == [1, 4]
    later = decoded_of(folder)
    fill(later, [0, 1, 4])
    assert sorted(reads) == [0, 1, 4]
    assert later.missing(ROWS).tolist() == [2, 3, 5]
    assert pixels(later) == expected(folder)


def test_what_the_key_follows(folder):
    first = decoded_of(folder).path
    assert decoded_of(folder).path == first
    assert decoded_of(folder, Compose([Resize(6), CenterCrop(6), RandomHorizontalFlip(), ToTensor()])).path == first
    assert decoded_of(folder, Compose([Resize(7), CenterCrop(6), ToTensor()])).path != first
    assert decoded_of(folder, Compose([Resize(6, InterpolationMode.BICUBIC), CenterCrop(6)])).path != first
    os.utime(paths_of(folder)[0], ns=(1, 1))
    moved = decoded_of(folder).path
    assert moved != first
    paths_of(folder)[0].write_bytes(paths_of(folder)[0].read_bytes() + b"\0")
    os.utime(paths_of(folder)[0], ns=(1, 1))
    assert decoded_of(folder).path not in (first, moved)


def test_fixed_steps(clip):
    steps = fixed_steps(clip.preprocess)
    assert steps.size == (64, 64)
    first, rest = steps.steps.transforms, steps.rest.transforms
    assert [type(step).__name__ for step in first[:2]] == ["Resize", "CenterCrop"]
    assert [type(step).__name__ for step in first[2:]] in ([], ["MaybeConvertMode"])  # a function in older open_clip
    assert [*first, *rest] == clip.preprocess.transforms
    assert fixed_steps(clip.train_preprocess) is None
    assert fixed_steps(Compose([Resize((4, 7)), ToTensor()])).size == (4, 7)
    assert fixed_steps(Compose([Resize(4), ToTensor()])) is None  # sizes follow the images
    assert fixed_steps(Compose([RandomHorizontalFlip(), CenterCrop(4)])) is None
    assert fixed_steps(v2.CenterCrop(4)) is None


def test_a_stopped_build_goes_on_where_it_was(folder, reads, monkeypatch):
    first, write = decoded_of(folder), DecodedImages._write

    def stopping(self, row, content):
        if row == 3:
            raise KeyboardInterrupt
        write(self, row, content)

    monkeypatch.setattr(DecodedImages, "_write", stopping)
    with pytest.raises(KeyboardInterrupt):
        first.fill(ROWS, 1, "decoding")
    monkeypatch.setattr(DecodedImages, "_write", write)
    kept = set(ROWS) - set(decoded_of(folder).missing(ROWS))
    assert 3 not in kept
    assert kept >= {0, 1, 2}
    reads.clear()
    again = decoded_of(folder)
    fill(again)
    assert set(reads) == set(ROWS) - kept
    assert pixels(again) == expected(folder)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "sums", "no sums"])
def test_a_damaged_file_is_made_again(folder, reads, caplog, damage):
    first = decoded_of(folder)
    fill(first)
    if damage == "no sums":
        first.sums_path.unlink()
    else:
        path = first.sums_path if damage == "sums" else first.path
        path.write_bytes({"empty": b"", "text": b"nonsense"}.get(damage, path.read_bytes()[:-3]))
    reads.clear()
    again = decoded_of(folder)
    with caplog.at_level(logging.WARNING):
        fill(again)
    assert "decoding them again" in caplog.text
    assert len(reads) == 6
    assert pixels(again) == expected(folder)
    assert decoded_of(folder).missing(ROWS).tolist() == []


def test_a_damaged_image_is_decoded_and_kept_again(folder, reads, caplog):
    first = decoded_of(folder)
    fill(first)
    content = bytearray(first.path.read_bytes())
    content[-1] ^= 1
    first.path.write_bytes(content)
    wanted = expected(folder)
    reads.clear()
    with caplog.at_level(logging.WARNING):
        assert pixels(decoded_of(folder)) == wanted
        assert pixels(decoded_of(folder)) == wanted
    assert reads == [5]
    assert caplog.text.count("are damaged") == 1


def test_a_full_disk_is_said_once_and_files_are_read(folder, caplog, monkeypatch):
    monkeypatch.setattr(decode_cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    decoded = decoded_of(folder)
    with caplog.at_level(logging.WARNING):
        keep_decoded([("photo", decoded, ROWS[:3]), ("art", decoded, ROWS[3:])])
    assert len(caplog.records) == 1
    assert "6.48e-07 GB are needed, 1e-07 GB are free" in caplog.text
    assert "data.cache_images=false" in caplog.text
    assert pixels(decoded) == expected(folder)


def test_a_disk_that_fills_up_keeps_what_it_has(folder, caplog, monkeypatch):
    write = DecodedImages._write

    def filling(self, row, content):
        if row > 2:
            raise OSError(28, "No space left on device")
        write(self, row, content)

    monkeypatch.setattr(DecodedImages, "_write", filling)
    decoded = decoded_of(folder)
    with caplog.at_level(logging.WARNING):
        fill(decoded)
    assert "No space left on device" in caplog.text
    assert decoded.missing(ROWS).tolist() == [3, 4, 5]
    assert pixels(decoded) == expected(folder)


def test_an_image_that_cannot_be_read_fails_where_it_is_read(folder):
    images = images_of(folder)
    paths_of(folder)[2].write_text("nonsense")
    decoded = DecodedImages(images, fixed_steps(TRANSFORM), folder / "cache")
    fill(decoded)
    assert decoded.missing(ROWS).tolist() == [2]
    with pytest.raises(OSError, match="cannot identify"):
        decoded[2]


def test_two_at_once_decode_once(folder, reads):
    """Locks are between open files, so threads meet them as processes do."""
    both = [decoded_of(folder) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, both))
    assert sorted(reads) == list(ROWS)
    assert pixels(both[0]) == pixels(both[1]) == expected(folder)
    assert len(list((folder / "cache").iterdir())) == 2


# ---- in the data module


def make(tree, tmp_path, cache="cache", **options):
    options = {"held_out": "photo", "batch_size": 3, "cache_dir": str(tmp_path / cache), **options}
    return DomainFolders(str(tree), **options)


def bound(module, **options):
    module.bind(TRANSFORM, **options)
    module.encode()
    return module


def batches(module):
    loaders = [module.train_dataloader(client, seed=0) for client in module.clients]
    loaders += [split.loader for split in module.evaluation_splits()]
    return [batch for loader in loaders for batch in loader]


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(x, y) and torch.equal(a, b) for (x, a), (y, b) in zip(first, second, strict=True)
    )


def files(tmp_path, cache="cache"):
    return sorted((tmp_path / cache / "images").glob("*.npy"))


def features(images):
    return {"features": images.flatten(1)}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_and_without(tree, tmp_path, reads, workers):
    plain = batches(bound(make(tree, tmp_path, cache_images=False)))
    assert files(tmp_path) == []
    reads.clear()
    cached = bound(make(tree, tmp_path, num_workers=workers))
    assert len(reads) == 24
    assert same(plain, batches(cached))
    assert same(plain, batches(bound(make(tree, tmp_path, num_workers=workers))))
    assert len(reads) == 24
    assert len(files(tmp_path)) == 3
    assert same(plain, batches(bound(make(tree, tmp_path, cache_dir=None))))


def test_what_is_held_out_or_few_shots_is_shared(tree, tmp_path, reads):
    bound(make(tree, tmp_path, shots=1))
    assert len(reads) < 24
    for options in ({}, {"held_out": "art"}, {"split_seed": 1}, {"validation_fraction": 0.5}):
        bound(make(tree, tmp_path, **options))
    assert len(reads) == 24
    assert len(files(tmp_path)) == 3


def test_prepared_features_make_no_images_but_read_those_that_are_there(tree, tmp_path, reads):
    alone = bound(make(tree, tmp_path, "other"), prepare=features)
    assert files(tmp_path, "other") == []
    bound(make(tree, tmp_path))
    reads.clear()
    after = bound(make(tree, tmp_path), prepare=features)
    assert reads == []
    for (x, a), (y, b) in zip(batches(alone), batches(after), strict=True):
        assert torch.equal(x["features"], y["features"])
        assert torch.equal(a, b)


def test_augmented_images_begin_with_the_whole_file(tree, tmp_path, reads):
    random = Compose([RandomHorizontalFlip(), Resize(6), CenterCrop(6), ToTensor()])
    module = bound(make(tree, tmp_path, augmentation="crop_flip"), train_transform=random)
    fixed = sum(split.num_examples for split in module.evaluation_splits())
    assert len(reads) == fixed
    found = batches(module)
    assert len(reads) == 24
    plain = bound(make(tree, tmp_path, augmentation="crop_flip", cache_images=False), train_transform=random)
    assert same(found, batches(plain))


def test_a_plain_trainer_reads_what_is_kept(tree, tmp_path, reads):
    module = make(tree, tmp_path)
    module.setup("fit")
    module.bind(TRANSFORM)
    for _ in range(2):
        for loader in [module.train_dataloader(seed=0), *module.val_dataloader()]:
            for _ in loader:
                pass
    assert len(reads) == 16
