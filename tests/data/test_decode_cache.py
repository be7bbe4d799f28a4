from __future__ import annotations

import logging
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, RandomHorizontalFlip, Resize, ToTensor, v2

from fedvlp.data import FolderImages
from fedvlp.data import cache as decode_cache
from fedvlp.data.cache import DecodedImages, fixed_steps, keep_decoded

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
    first = steps.steps.transforms
    rest = steps.rest.transforms
    assert [type(step).__name__ for step in first[:2]] == ["Resize", "CenterCrop"]
    assert [type(step).__name__ for step in first[2:]] in ([], ["MaybeConvertMode"])  # a function in older open_clip
    assert [*first, *rest] == clip.preprocess.transforms
    assert fixed_steps(clip.train_preprocess) is None
    assert fixed_steps(Compose([Resize((4, 7)), ToTensor()])).size == (4, 7)
    assert fixed_steps(Compose([Resize(4), ToTensor()])) is None  # sizes follow the images
    assert fixed_steps(Compose([RandomHorizontalFlip(), CenterCrop(4)])) is None
    assert fixed_steps(v2.CenterCrop(4)) is None


def test_a_stopped_build_goes_on_where_it_was(folder, reads, monkeypatch):
    first = decoded_of(folder)
    write = DecodedImages._write

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
        first.checksums_path.unlink()
    else:
        path = first.checksums_path if damage == "sums" else first.path
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
