from __future__ import annotations

from itertools import chain

import pytest
import torch
from torchvision.transforms import CenterCrop, Compose, RandomHorizontalFlip, Resize, ToTensor

from fedvlp.data import DomainFolders
from tests.helpers.data import same

TRANSFORM = Compose([Resize(6), CenterCrop(6), ToTensor()])


def make(tree, tmp_path, cache="cache", **options):
    options = {"held_out": "photo", "batch_size": 3, "cache_dir": str(tmp_path / cache), **options}
    return DomainFolders(str(tree), **options)


def bound(module, **options):
    module.bind(TRANSFORM, **options)
    module.encode()
    return module


def all_batches(module):
    loaders = [module.train_dataloader(client, seed=0) for client in module.clients]
    loaders += [split.loader for split in module.evaluation_splits()]
    return list(chain.from_iterable(loaders))


def files(tmp_path, cache="cache"):
    return sorted((tmp_path / cache / "images").glob("*.npy"))


def features(images):
    return {"features": images.flatten(1)}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_and_without(tree, tmp_path, reads, workers):
    plain = all_batches(bound(make(tree, tmp_path, cache_images=False)))
    assert files(tmp_path) == []
    reads.clear()
    cached = bound(make(tree, tmp_path, num_workers=workers))
    assert len(reads) == 24
    assert same(plain, all_batches(cached))
    assert same(plain, all_batches(bound(make(tree, tmp_path, num_workers=workers))))
    assert len(reads) == 24
    assert len(files(tmp_path)) == 3
    assert same(plain, all_batches(bound(make(tree, tmp_path, cache_dir=None))))


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
    for (x, a), (y, b) in zip(all_batches(alone), all_batches(after), strict=True):
        assert torch.equal(x["features"], y["features"])
        assert torch.equal(a, b)


def test_augmented_images_begin_with_the_whole_file(tree, tmp_path, reads):
    random = Compose([RandomHorizontalFlip(), Resize(6), CenterCrop(6), ToTensor()])
    module = bound(make(tree, tmp_path, augmentation="crop_flip"), train_transform=random)
    fixed = sum(split.num_examples for split in module.evaluation_splits())
    assert len(reads) == fixed
    found = all_batches(module)
    assert len(reads) == 24
    plain = bound(make(tree, tmp_path, augmentation="crop_flip", cache_images=False), train_transform=random)
    assert same(found, all_batches(plain))


def test_a_plain_trainer_reads_what_is_kept(tree, tmp_path, reads):
    module = make(tree, tmp_path)
    module.setup("fit")
    module.bind(TRANSFORM)
    for _ in range(2):
        for loader in [module.train_dataloader(seed=0), *module.val_dataloader()]:
            for _ in loader:
                pass
    assert len(reads) == 16
