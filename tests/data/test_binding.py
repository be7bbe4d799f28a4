from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from fedvlp.data import Pooled, Shards
from tests.helpers.data import batches, prepared, same


def test_training_batches(data):
    loader = data.train_dataloader(data.clients[0], seed=5)
    found = batches(loader)
    assert len(loader) == len(found) == 5
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 2]
    assert found[0][0].shape == (4, 3, 8, 8)
    assert found[0][1].dtype == torch.int64
    assert same(found, batches(data.train_dataloader(data.clients[0], seed=5)))
    assert not same(found, batches(data.train_dataloader(data.clients[0], seed=6)))
    assert sorted(torch.cat([labels for _, labels in found]).tolist()) == [0] * 8 + [1] * 6 + [2] * 4


def test_each_pass_has_its_own_order(data):
    loader, again = (data.train_dataloader(data.clients[0], seed=5) for _ in range(2))
    first = batches(loader)
    second = batches(loader)
    assert not same(first, second)
    assert same(first, batches(again))
    assert same(second, batches(again))


def test_prepared_batches_equal_raw_ones(data, transform):
    raw = [batches(data.train_dataloader(client, seed=7)) for client in data.clients]
    raw += [batches(split.loader) for split in data.evaluation_splits()]
    data.bind(transform, prepared)
    ready = [batches(data.train_dataloader(client, seed=7)) for client in data.clients]
    ready += [batches(split.loader) for split in data.evaluation_splits()]
    for before, after in zip(raw, ready, strict=True):
        assert same([(images.flatten(1), labels) for images, labels in before], [(x["features"], y) for x, y in after])
        means = [(prepared(images)["mean"], labels) for images, labels in before]
        assert all(torch.allclose(mean, x["mean"]) for (mean, _), (x, _) in zip(means, after, strict=True))


def test_second_passes_agree_too(data, transform):
    loader = data.train_dataloader(data.clients[0], seed=7)
    raw = [batches(loader), batches(loader)][1]
    data.bind(transform, prepared)
    loader = data.train_dataloader(data.clients[0], seed=7)
    ready = [batches(loader), batches(loader)][1]
    assert same([(images.flatten(1), labels) for images, labels in raw], [(x["features"], y) for x, y in ready])


def test_images_are_prepared_once(data, transform):
    seen = []
    data.bind(transform, lambda images: seen.append(len(images)) or prepared(images))
    data.encode()
    assert sum(seen) == 22 + 12 + 9
    for client in data.clients:
        batches(data.train_dataloader(client, seed=0))
    for split in data.evaluation_splits():
        batches(split.loader)
    assert sum(seen) == 22 + 12 + 9


def test_prepared_tensors_can_be_trained_on_after_inference_mode(data, transform):
    data.bind(transform, prepared)
    with torch.inference_mode():
        data.encode()
    inputs, _ = next(iter(data.train_dataloader(data.clients[0], seed=0)))
    weight = torch.ones(192, requires_grad=True)
    (inputs["features"] @ weight).sum().backward()
    assert weight.grad is not None


def test_prepare_must_give_a_row_an_image(data, transform):
    data.bind(transform, lambda images: {"features": images[:1]})
    with pytest.raises(ValueError, match="22 rows of 'features'; got 1"):
        data.encode()


def random_flip_and_crop():
    return v2.Compose([
        v2.RandomResizedCrop(8, scale=(0.3, 1.0)), v2.RandomHorizontalFlip(), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ])  # fmt: skip


@pytest.mark.parametrize("augmentation", ["none", "crop_flip"])
def test_batches_do_not_depend_on_workers_nor_touch_the_global_generator(arrays, transform, augmentation):
    found = []
    for workers in (0, 2):
        module = arrays(cache_dir=None, batch_size=5, num_workers=workers, augmentation=augmentation)
        module.bind(transform, train_transform=random_flip_and_crop())
        torch.manual_seed(workers)
        before = torch.get_rng_state()
        loader = module.train_dataloader(module.clients[0], seed=3)
        found.append(batches(loader) + batches(loader) + batches(module.evaluation_splits()[0].loader))
        assert torch.equal(torch.get_rng_state(), before)
    assert same(*found)


def test_features_do_not_depend_on_workers(arrays, transform):
    found = []
    for workers in (0, 2):
        module = arrays(cache_dir=None, num_workers=workers)
        module.bind(transform, prepared)
        found.append(
            [(inputs["mean"], labels) for inputs, labels in module.train_dataloader(module.clients[0], seed=3)]
        )
    assert same(*found)


def test_augmented_training_images_are_raw_while_evaluation_is_prepared(arrays, transform):
    module = arrays(cache_dir=None, augmentation="crop_flip")
    seen = []
    module.bind(
        transform, lambda images: seen.append(len(images)) or prepared(images), train_transform=random_flip_and_crop()
    )
    first, again = (batches(module.train_dataloader(module.clients[0], seed=1)) for _ in range(2))
    other = batches(module.train_dataloader(module.clients[0], seed=2))
    assert first[0][0].shape == (16, 3, 8, 8)
    assert same(first, again)
    assert not same(first, other)
    for split in module.evaluation_splits():
        assert set(next(iter(split.loader))[0]) == {"features", "mean"}
    assert sum(seen) == sum(split.num_examples for split in module.evaluation_splits())


def test_augmentation_follows_seed_and_image_not_the_batch(arrays, transform):
    found = []
    for batch_size in (3, 7):
        module = arrays(cache_dir=None, augmentation="crop_flip", batch_size=batch_size)
        module.bind(transform, train_transform=random_flip_and_crop())
        found.append(torch.cat([images for images, _ in module.train_dataloader(module.clients[0], seed=1)]))
    assert torch.equal(*found)


def test_a_domain_without_validation_images_has_nothing_to_prepare(arrays, transform):
    class Few(arrays):
        counts = {"a": (10, 7, 5), "b": (1, 1, 1)}  # noqa: RUF012

    module = Few(cache_dir=None, augmentation="crop_flip")
    module.bind(transform, prepared, train_transform=transform)
    module.encode()
    assert [split.name for split in module.evaluation_splits()] == ["validation/a"]
    assert len(batches(module.train_dataloader(module.clients[1], seed=0))) == 1


@pytest.fixture
def mixed(arrays, transform):
    """Clients whose images come from several domains; every domain has a test split."""
    module = arrays(partition=Shards(4, shards_per_client=2), test_fraction=0.25, batch_size=5, cache_dir=None)
    module.bind(transform)
    return module


def test_batches_of_several_domains_are_the_same_prepared_and_raw(mixed, transform):
    assert [client.domain for client in mixed.clients] == [-1] * 4
    raw = [batches(mixed.train_dataloader(client, seed=7)) for client in mixed.clients]
    for client, found in zip(mixed.clients, raw, strict=True):
        assert sum(len(labels) for _, labels in found) == client.num_examples
    mixed.bind(transform, prepared)
    ready = [batches(mixed.train_dataloader(client, seed=7)) for client in mixed.clients]
    for before, after in zip(raw, ready, strict=True):
        assert same([(images.flatten(1), labels) for images, labels in before], [(x["features"], y) for x, y in after])


def test_augmented_batches_of_several_domains(arrays, transform):
    module = arrays(partition=Shards(4), augmentation="crop_flip", cache_dir=None)
    module.bind(transform, prepared, train_transform=lambda image: transform(image) + 5)
    found = batches(module.train_dataloader(module.clients[0], seed=0))
    assert min(images.min() for images, _ in found) >= 5
    assert set(next(iter(module.evaluation_splits()[0].loader))[0]) == {"features", "mean"}


def test_evaluation_is_by_domain_whatever_the_clients(arrays, transform, mixed):
    plain = arrays(test_fraction=0.25, cache_dir=None)
    plain.bind(transform)
    splits = mixed.evaluation_splits()
    expected = plain.evaluation_splits()
    names = ["validation/a", "validation/b", "validation/c", "test/a", "test/b", "test/c"]
    assert [split.name for split in splits] == names
    for split, other in zip(splits, expected, strict=True):
        assert (split.name, split.num_examples) == (other.name, other.num_examples)
        assert same(batches(split.loader), batches(other.loader))
        assert len(other.clients) == 1
        assert {client.id for client in split.clients} <= {0, 1, 2, 3}


def test_whole_domains_are_prepared_whatever_the_shots(arrays, transform):
    module = arrays(held_out="b", shots=2, cache_dir=None)
    seen = []
    module.bind(transform, lambda images: seen.append(len(images)) or prepared(images))
    module.encode()
    assert [client.num_examples for client in module.clients] == [6, 4]  # of two classes of c one image is left
    assert sum(seen) == 22 + 12 + 9  # so that runs of all shots share them


@pytest.mark.parametrize("prepare", [None, prepared], ids=["images", "prepared"])
def test_training_batches_say_of_which_domain_an_image_is_if_asked(arrays, transform, prepare):
    """Found out from the pixels, image by image; the rest of a batch is as without, and evaluation has none."""
    data = arrays(held_out="b", batch_size=4, partition=Pooled(), cache_dir=None)
    data.bind(transform, prepare)
    plain = batches(data.train_dataloader(data.clients[0], seed=7))
    data.bind(transform, prepare, with_domains=True)
    found = batches(data.train_dataloader(data.clients[0], seed=7))
    number_of = {}
    for number, name in enumerate(data.source_domains):
        for image in data._images[name]:
            number_of[transform(image).flatten().numpy().tobytes()] = number
    for (inputs, labels), (before, same_labels) in zip(found, plain, strict=True):
        rest = {name: value for name, value in inputs.items() if name != "domain"}
        assert same([(rest if prepare else rest["images"], labels)], [(before, same_labels)])
        assert inputs["domain"].dtype == torch.int64
        pixels = rest["features" if prepare else "images"].flatten(1)
        assert inputs["domain"].tolist() == [number_of[row.numpy().tobytes()] for row in pixels]
    assert torch.bincount(torch.cat([inputs["domain"] for inputs, _ in found])).tolist() == [18, 7]
    splits = [inputs for split in data.evaluation_splits() for inputs, _ in split.loader]
    assert not any(isinstance(inputs, dict) and "domain" in inputs for inputs in splits)
    for inputs, _ in data.train_dataloader():
        assert set(inputs) == {"images", "domain"}
