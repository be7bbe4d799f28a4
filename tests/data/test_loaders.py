"""Batches of images and precomputed tensors: same images, orders and labels for any number of workers."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.functional import to_tensor

from fedvlp.data import ArrayImages, Pooled, Shards
from fedvlp.data.loaders import DeviceLoader, ImageDataset, image_loader
from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, prepared, same


def all_batches(data):
    """List the batches of each client in two passes, then of each evaluation split."""
    loaders = [data.train_dataloader(client, seed=7) for client in data.clients]
    passes = [batches(loader) + batches(loader) for loader in loaders]
    return passes + [batches(split.loader) for split in data.evaluation_splits()]


def flattened(passes):
    return [[(images.flatten(1), labels) for images, labels in each] for each in passes]


def features(passes):
    return [[(inputs["features"], labels) for inputs, labels in each] for each in passes]


def counting():
    """Make a precompute function, and the list of batch sizes of its calls."""
    sizes = []
    return lambda images: sizes.append(len(images)) or prepared(images), sizes


@pytest.fixture
def mixed(arrays, transform):
    """Clients with images from several domains; every domain has a test split."""
    data = arrays(partition=Shards(4, shards_per_client=2), test_fraction=0.25, batch_size=5, cache_dir=None)
    data.bind(transform)
    return data


def test_training_batches(data):
    loader = data.train_dataloader(data.clients[0], seed=5)
    found = batches(loader)
    assert len(loader) == len(found) == 5
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 2]
    assert found[0][0].shape == (4, 3, 8, 8)
    assert found[0][1].dtype == torch.int64
    assert not same(found, batches(data.train_dataloader(data.clients[0], seed=6)))
    assert sorted(torch.cat([labels for _, labels in found]).tolist()) == [0] * 8 + [1] * 6 + [2] * 4


@pytest.mark.parametrize("precompute", [None, prepared], ids=["images", "precomputed"])
def test_each_pass_has_its_own_order(data, transform, precompute):
    data.bind(transform, precompute)
    loader, again = (data.train_dataloader(data.clients[0], seed=5) for _ in range(2))
    first, second = batches(loader), batches(loader)
    assert not same(first, second)
    assert same(first, batches(again))
    assert same(second, batches(again))


@pytest.mark.parametrize("fixture", ["data", "mixed"])
def test_precomputed_batches_are_those_of_the_images(request, fixture, transform):
    data = request.getfixturevalue(fixture)
    raw = all_batches(data)
    assert [sum(len(labels) for _, labels in each) for each in raw[: len(data.clients)]] == [
        2 * client.num_examples for client in data.clients
    ]
    data.bind(transform, prepared)
    ready = all_batches(data)
    for before, after in zip(raw, ready, strict=True):
        assert same(*flattened([before]), *features([after]))
        for (images, _), (inputs, _) in zip(before, after, strict=True):
            assert torch.allclose(prepared(images)["mean"], inputs["mean"])


def test_only_used_images_are_encoded_and_only_once(arrays, transform):
    data = arrays(held_out="b", shots=2, cache_dir=None)
    precompute, sizes = counting()
    data.bind(transform, precompute)
    data.encode()
    all_batches(data)
    assert [client.num_examples for client in data.clients] == [6, 4]  # of two classes of c one image is left
    used = [len(part) for part in data.split_parts]
    assert sum(sizes) == sum(used) < 22 + 12 + 9


def test_precomputed_tensors_can_be_trained_on_after_inference_mode(data, transform):
    data.bind(transform, prepared)
    with torch.inference_mode():
        data.encode()
    inputs, _ = next(iter(data.train_dataloader(data.clients[0], seed=0)))
    weight = torch.ones(192, requires_grad=True)
    (inputs["features"] @ weight).sum().backward()
    assert weight.grad is not None


def random_flip_and_crop():
    return v2.Compose([
        v2.RandomResizedCrop(8, scale=(0.3, 1.0)), v2.RandomHorizontalFlip(), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ])  # fmt: skip


def test_batches_do_not_depend_on_workers_nor_touch_the_global_generator(arrays, transform):
    found = []
    for workers in (0, 2):
        data = arrays(cache_dir=None, batch_size=5, num_workers=workers, augmentation="crop_flip")
        data.bind(transform, prepared, train_transform=random_flip_and_crop())
        torch.manual_seed(workers)
        before = torch.get_rng_state()
        loader = data.train_dataloader(data.clients[0], seed=3)
        found.append(batches(loader) + batches(loader) + batches(data.evaluation_splits()[0].loader))
        assert torch.equal(torch.get_rng_state(), before)
    assert same(*found)


def test_augmented_training_images_are_read_while_evaluation_is_precomputed(arrays, transform):
    data = arrays(cache_dir=None, augmentation="crop_flip", partition=Shards(4))
    precompute, sizes = counting()
    data.bind(transform, precompute, train_transform=lambda image: transform(image) + 5)
    data.encode()
    found = batches(data.train_dataloader(data.clients[0], seed=1))
    assert min(images.min() for images, _ in found) >= 5
    for split in data.evaluation_splits():
        assert set(next(iter(split.loader))[0]) == {"features", "mean"}
    assert sum(sizes) == sum(split.num_examples for split in data.evaluation_splits())


def test_augmentation_follows_seed_and_image_not_the_batch(arrays, transform):
    found = []
    for batch_size, seed in ((3, 1), (7, 1), (7, 2)):
        data = arrays(cache_dir=None, augmentation="crop_flip", batch_size=batch_size)
        data.bind(transform, train_transform=random_flip_and_crop())
        found.append(torch.cat([images for images, _ in data.train_dataloader(data.clients[0], seed=seed)]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("precompute", [None, prepared], ids=["images", "precomputed"])
def test_training_batches_contain_domains_on_request(arrays, transform, precompute):
    """Compare with the pixels, image by image. The rest of a batch is unchanged, and evaluation has no domains."""
    data = arrays(held_out="b", batch_size=4, partition=Pooled(), cache_dir=None)
    data.bind(transform, precompute)
    plain = batches(data.train_dataloader(data.clients[0], seed=7))
    data.bind(transform, precompute, include_domains=True)
    found = batches(data.train_dataloader(data.clients[0], seed=7))
    number_of = {}
    for number, name in enumerate(data.source_domains):
        number_of |= {transform(image).numpy().tobytes(): number for image in data.images[name]}
    for (inputs, labels), (before, same_labels) in zip(found, plain, strict=True):
        rest = {name: value for name, value in inputs.items() if name != "domain"}
        assert same([(rest if precompute else rest["images"], labels)], [(before, same_labels)])
        pixels = rest["features" if precompute else "images"]
        assert inputs["domain"].tolist() == [number_of[row.numpy().tobytes()] for row in pixels]
    assert torch.bincount(torch.cat([inputs["domain"] for inputs, _ in found])).tolist() == [18, 7]
    splits = [inputs for split in data.evaluation_splits() for inputs, _ in split.loader]
    assert not any(isinstance(inputs, dict) and "domain" in inputs for inputs in splits)
    for inputs, _ in data.train_dataloader():
        assert set(inputs) == {"images", "domain"}


def black_images(count=3):
    images = ArrayImages(np.zeros((count, 2, 2, 3), np.uint8), range(count))
    return ImageDataset([(images, np.arange(count))], to_tensor)


def test_batches_come_to_the_device():
    device = torch.device("meta")
    found = list(DeviceLoader(image_loader(black_images(), 2, device=device), device))
    assert [pixels.shape for pixels, _ in found] == [(2, 3, 2, 2), (1, 3, 2, 2)]
    assert {(pixels.device, labels.device) for pixels, labels in found} == {(device, device)}


@pytest.fixture
def others(tmp_path, save):
    """A folder of five images at several depths, and a file that is not an image."""
    folder = tmp_path / "others"
    for index, name in enumerate(("1.png", "a/2.png", "a/3.jpg", "a/b/c/4.png", "z/5.png")):
        save(folder / name, seed=index)
    (folder / "a" / "notes.txt").touch()
    return folder


def with_others(arrays, transform, others, **options):
    data = arrays(held_out="b", cache_dir=None, eval_batch_size=2, out_of_distribution=str(others))
    data.prepare_data()
    data.setup("fit")
    data.bind(transform, **options)
    data.encode()
    return data


def test_all_images_of_no_class_are_one_split(arrays, transform, others):
    (split,) = with_others(arrays, transform, others).out_of_distribution_splits()
    assert (split.name, split.domain) == ("out_of_distribution/others", "others")
    assert (split.num_examples, split.clients) == (5, ())
    found = batches(split.loader)
    assert [len(labels) for _, labels in found] == [2, 2, 1]
    assert {label for _, labels in found for label in labels.tolist()} == {-1}
    (encoded,) = with_others(arrays, transform, others, precompute=prepared, key="k").out_of_distribution_splits()
    assert same(*flattened([found]), *features([batches(encoded.loader)]))


def test_nothing_else_depends_on_images_of_no_class(arrays, transform, others, data, save):
    beside = with_others(arrays, transform, others)
    assert [split.name for split in beside.evaluation_splits()] == [split.name for split in data.evaluation_splits()]
    assert (beside.split_hash, beside.protocol) == (data.split_hash, data.protocol)
    assert data.out_of_distribution_splits() == []
    described = beside.describe()
    identified = described.pop("out_of_distribution")
    assert (identified["name"], identified["images"][:8]) == ("others", "5 images")
    assert described == data.describe()
    save(others / "z" / "6.png", seed=9)
    assert with_others(arrays, transform, others).describe()["out_of_distribution"] != identified


def test_mistakes_in_the_folder_of_images_of_no_class_are_named(arrays, tmp_path, others):
    (tmp_path / "empty").mkdir()
    (others / "a" / "bad.png").write_bytes(b"no image")
    for folder, message in {
        tmp_path / "nowhere": r"there is none. Check data\.out_of_distribution",
        tmp_path / "empty": "found none",
        others: r"1 of 6 images can't be read:\n  a/bad\.png",
    }.items():
        with pytest.raises(UserError, match=message):
            arrays(out_of_distribution=str(folder)).prepare_data()


@pytest.mark.parametrize("precompute", [None, prepared], ids=["images", "precomputed"])
def test_balanced_classes_are_equally_likely_in_each_pass(arrays, transform, precompute, monkeypatch):
    monkeypatch.setattr(arrays, "counts", {"a": (80, 15, 5)})
    data = arrays(balance_classes=True, cache_dir=None, batch_size=7)
    data.bind(transform, precompute)
    (client,) = data.clients
    loader = data.train_dataloader(client, seed=3)
    drawn = torch.cat([labels for _ in range(40) for _, labels in loader])
    assert len(drawn) == 40 * client.num_examples
    np.testing.assert_allclose(drawn.bincount() / len(drawn), [1 / 3] * 3, atol=0.03)
    assert same(batches(data.train_dataloader(client, seed=3)), batches(data.train_dataloader(client, seed=3)))
    once = torch.cat([labels for _, labels in data.train_dataloader(client, seed=3, once=True)])
    assert once.bincount().tolist() == [64, 12, 4]
