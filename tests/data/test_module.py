import json
from itertools import chain
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import nn

from fedvlp.data import Dispersed, LongTail
from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, same
from tests.helpers.shapes import unchecked


def test_each_source_domain_is_a_client_and_every_image_is_used_once(data):
    assert [(client.id, client.domain, client.num_examples) for client in data.clients] == [(0, 0, 18), (1, 1, 7)]
    splits = data.evaluation_splits()
    assert [split.name for split in splits] == ["validation/a", "validation/c", "held_out/b"]
    assert [split.clients for split in splits] == [(data.clients[0],), (data.clients[1],), ()]
    assert [sum(len(labels) for _, labels in split.loader) for split in splits] == [4, 2, 12]
    table = json.loads(json.dumps(data.split_table()))
    names = list(chain.from_iterable(row["images"] for row in table))
    assert len(names) == len(set(names)) == 22 + 12 + 9
    assert table[0] == {"role": "train", "domain": "a", "client": 0, "images": table[0]["images"]}
    assert table[-1]["role"] == "held_out"
    assert table[-1]["client"] is None


def test_a_long_tail_describes_its_training_images(arrays):
    assert "training_images" not in arrays(cache_dir=None).describe()
    module = arrays(cache_dir=None, partition=LongTail(4.0))
    images = module.describe()["training_images"]
    assert list(images) == module.class_names
    assert sum(images.values()) == sum(client.num_examples for client in module.clients)
    assert max(images.values()) > min(images.values())


def test_crop_flip_reaches_a_plain_trainer(arrays, transform):
    module = arrays(cache_dir=None, augmentation="crop_flip")
    module.trainer = SimpleNamespace(lightning_module=SimpleNamespace(transform=transform))
    with pytest.raises(UserError, match="train_transform"):
        module.setup("fit")
    module.trainer.lightning_module.train_transform = lambda image: transform(image) + 5
    module.setup("fit")
    assert next(iter(module.train_dataloader()))[0].min() >= 5
    assert next(iter(module.val_dataloader()[0]))[0].max() <= 1
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
        ({"batch_size": 0}, "batch_size"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"partition": Dispersed(2)}, "one client for each of the 3 source domains"),
    ],
)
def test_bad_arguments_are_refused(arrays, options, message):
    def prepare():
        module = arrays(cache_dir=None, **options)
        assert module.class_names
        module.prepare_data()

    with pytest.raises(UserError, match=message), unchecked():
        prepare()


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


@pytest.mark.filterwarnings("ignore:.*logging interval")
def test_plain_lightning_trainer(arrays, transform, tmp_path):
    module = Classifier(transform)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=tmp_path,
    )  # fmt: skip
    data = arrays(held_out="b", cache_dir=None)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert tuple(module.seen.values()) == (25, 6, 12)


def test_the_transform_follows_the_module_unless_it_was_given(arrays, transform):
    def set_up(data, module):
        data.trainer = SimpleNamespace(lightning_module=module)
        data.setup("fit")
        return data.loaders[""].transform

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
