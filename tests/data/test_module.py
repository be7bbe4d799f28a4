from __future__ import annotations

import json
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from fedvlp.data import ArrayImages, Dispersed, FederatedDataModule
from fedvlp.utils.errors import UserError


def prepared(images):
    return {"features": images.flatten(1), "mean": images.mean((1, 2, 3))}


def batches(loader):
    return [(inputs, labels) for inputs, labels in loader]


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(x, y) and torch.equal(a, b) for (x, a), (y, b) in zip(first, second, strict=True)
    )


@pytest.fixture
def data(arrays, transform):
    module = arrays(held_out="b", batch_size=4, cache_dir=None)
    module.setup("fit")
    module.bind(transform)
    return module


def test_names_are_known_before_setup(arrays):
    module = arrays(held_out=["b"], class_names_map={"owl": "barn owl"}, cache_dir=None)
    assert module.class_names == ["cat", "dog", "barn owl"]
    assert module.domains == ["a", "b", "c"]
    assert module.source_domains == ["a", "c"]
    assert module.held_out_domains == ["b"]


def test_each_source_domain_is_a_client(data):
    assert [(client.id, client.domain, client.name) for client in data.clients] == [(0, 0, "a"), (1, 1, "c")]
    assert [client.num_examples for client in data.clients] == [18, 7]


def test_evaluation_splits(data):
    splits = data.evaluation_splits()
    assert [split.name for split in splits] == ["validation/a", "validation/c", "held_out/b"]
    assert [split.clients for split in splits] == [(data.clients[0],), (data.clients[1],), ()]
    assert [split.num_examples for split in splits] == [4, 2, 12]
    for split in splits:
        assert sum(len(labels) for _, labels in split.loader) == split.num_examples


def test_nothing_held_out(arrays):
    module = arrays(cache_dir=None)
    assert module.held_out_domains == []
    assert [client.name for client in module.clients] == ["a", "b", "c"]
    assert {row["role"] for row in module.split_table()} == {"train", "validation"}


def test_split_table_lists_every_image_once(data):
    table = json.loads(json.dumps(data.split_table()))
    names = [name for row in table for name in row["images"]]
    assert len(names) == len(set(names)) == 22 + 12 + 9
    assert table[0] == {"role": "train", "domain": "a", "client": 0, "images": table[0]["images"]}
    assert table[-1]["role"] == "held_out"
    assert table[-1]["client"] is None


def test_split_hash_follows_the_split(arrays):
    def value(**options):
        return arrays(cache_dir=None, **options).split_hash

    assert value(held_out="b") == value(held_out="b", batch_size=3, num_workers=1, class_names_map={"owl": "bird"})
    assert len({value(), value(held_out="b"), value(split_seed=1), value(validation_fraction=0.5)}) == 4


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
    first, second = batches(loader), batches(loader)
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
    module, seen = arrays(cache_dir=None, augmentation="crop_flip"), []
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


def test_crop_flip_needs_a_train_transform(arrays, transform):
    with pytest.raises(UserError, match="train_transform"):
        arrays(cache_dir=None, augmentation="crop_flip").bind(transform)


def test_crop_flip_reaches_a_plain_trainer(arrays, transform):
    module = arrays(cache_dir=None, augmentation="crop_flip")
    module.trainer = SimpleNamespace(lightning_module=SimpleNamespace(transform=transform))
    with pytest.raises(UserError, match="train_transform"):
        module.setup("fit")
    module.trainer.lightning_module.train_transform = lambda image: transform(image) + 5
    module.setup("fit")
    assert next(iter(module.train_dataloader()))[0].min() >= 5
    assert next(iter(module.val_dataloader()[0]))[0].max() <= 1


def test_a_domain_without_validation_images_has_nothing_to_prepare(arrays, transform):
    class Few(arrays):
        counts = {"a": (10, 7, 5), "b": (1, 1, 1)}  # noqa: RUF012

    module = Few(cache_dir=None, augmentation="crop_flip")
    module.bind(transform, prepared, train_transform=transform)
    module.encode()
    assert [split.name for split in module.evaluation_splits()] == ["validation/a"]
    assert len(batches(module.train_dataloader(module.clients[1], seed=0))) == 1


def test_without_a_transform_the_error_says_what_to_do(arrays):
    module = arrays(cache_dir=None)
    module.trainer = SimpleNamespace(lightning_module=nn.Linear(1, 1))
    module.setup("fit")
    with pytest.raises(UserError, match=r"Give it a `transform`.*bind"):
        module.train_dataloader()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": "B a"}, "got 'B a'"),
        ({"held_out": "A"}, "Did you mean 'a'"),
        ({"held_out": ["a", "b", "c"]}, "All 3 domains are held out"),
        ({"class_names_map": {"dogs": "hound"}}, "Did you mean 'dog'"),
        ({"batch_size": 0}, "at least 1; got 0, 64"),
        ({"eval_batch_size": 0}, "at least 1; got 16, 0"),
        ({"validation_fraction": 0.0}, "between 0 and 1"),
        ({"validation_fraction": 1.0}, "between 0 and 1"),
        ({"test_fraction": 1.0}, "test_fraction of 0, or below 1"),
        ({"test_fraction": -0.1}, "test_fraction of 0, or below 1"),
        ({"shots": 0}, "shots of at least 1, or null"),
        ({"partition": Dispersed(2)}, "one client for each of the 3 source domains"),
        ({"split_seed": -1}, "split_seed"),
        ({"num_workers": -1}, "num_workers"),
        ({"augmentation": "mixup"}, "crop_flip"),
    ],
)
def test_bad_arguments_are_refused(arrays, options, message):
    with pytest.raises(UserError, match=message):
        (lambda module: (module.class_names, module.prepare_data()))(arrays(cache_dir=None, **options))


def test_a_client_without_images_is_refused(arrays):
    class Empty(arrays):
        def load_domains(self):
            domains, names = super().load_domains()
            return {**domains, "d": ArrayImages(np.zeros((0, 8, 8, 3), np.uint8), [])}, names

    with pytest.raises(UserError, match="'d' has no training image"):
        Empty(cache_dir=None).prepare_data()


def test_load_domains_must_be_written():
    with pytest.raises(NotImplementedError, match="FederatedDataModule must implement load_domains"):
        FederatedDataModule().prepare_data()


class Classifier(L.LightningModule):
    """The smallest module that trains on images."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform
        self.linear = nn.Linear(192, 3)
        self.seen = {"train": 0, "validation": 0, "test": 0}

    def step(self, batch, role):
        images, labels = batch
        self.seen[role] += len(labels)
        return nn.functional.cross_entropy(self.linear(images.flatten(1)), labels)

    def training_step(self, batch, index):
        return self.step(batch, "train")

    def validation_step(self, batch, index, dataloader_idx=0):
        self.step(batch, "validation")

    def test_step(self, batch, index, dataloader_idx=0):
        self.step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*logging interval.*", "ignore:.*LeafSpec.*:FutureWarning"
)
@pytest.mark.parametrize(
    ("options", "counts"),
    [({"held_out": "b"}, (25, 6, 12)), ({}, (34, 9, 9)), ({"test_fraction": 0.5}, (15, 7, 21))],
    ids=repr,
)
def test_plain_lightning_trainer(arrays, transform, tmp_path, options, counts):
    module = Classifier(transform)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=tmp_path,
    )  # fmt: skip
    data = arrays(**options, cache_dir=None)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert tuple(module.seen.values()) == counts


def test_the_transform_follows_the_module_unless_it_was_given(arrays, transform):
    def set_up(data, module):
        data.trainer = SimpleNamespace(lightning_module=module)
        data.setup("fit")
        return data.binding.transform

    first, second = (Classifier(lambda image, i=i: transform(image) + i) for i in range(2))
    data = arrays(cache_dir=None)
    assert set_up(data, first) is first.transform
    assert set_up(data, second) is second.transform
    given = arrays(cache_dir=None)
    given.bind(transform)
    assert set_up(given, first) is transform


def test_training_of_all_domains_follows_the_global_seed(data):
    torch.manual_seed(1)
    first = batches(data.train_dataloader())
    torch.manual_seed(1)
    torch.rand(3)  # reads the seed, not the state
    assert same(first, batches(data.train_dataloader()))
    torch.manual_seed(2)
    assert not same(first, batches(data.train_dataloader()))
