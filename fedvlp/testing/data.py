"""What every data set must keep to."""

import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import PurePath

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlp.data import FederatedDataModule, Images
from fedvlp.testing.contract import ContractError, require


def check_data(make: Callable[[], FederatedDataModule]) -> None:
    """Read and splits a data set twice, and checks what every data set must keep to.

    Args:
        make: Makes it, each time the same and from scratch, such as ``lambda: MyImages(root, held_out="sketch",
            cache_dir=None)``; without a cache, since what is cached is not read again.

    Raises:
        ContractError: if it does not keep to something; says to what.
        UserError: if it refuses its own options or images.
    """
    data = make()
    require(isinstance(data, FederatedDataModule), f"Expected a FederatedDataModule, got a {type(data).__name__}.")
    other = make()
    require(other is not data, "Expected a function that makes the data set from scratch; it gave the same twice.")
    name = type(data).__name__
    domains, class_names = _loaded(data, name)
    _check_classes(domains, class_names, name)
    _check_same(domains, _loaded(other, name)[0], name)
    _check_split(data, other, name)
    data.bind(_to_tensor, train_transform=_to_tensor)
    for client in data.clients:
        first, second = (list(data.train_dataloader(client, seed=3)) for _ in range(2))
        labels = torch.cat([batch[1] for batch in first])
        where = f"{name}: client {client.name!r}"
        count = client.num_examples
        require(len(labels) == count > 0, f"{where} must train on its {count} images, at least 1; got {len(labels)}.")
        are_labels = bool((labels < len(class_names)).all())
        require(are_labels, f"{where} has labels beyond the {len(class_names)} classes.")
        same = all(torch.equal(one[0], other[0]) for one, other in zip(first, second, strict=True))
        require(same, f"{where} must get the same batches for the same seed.")


def _loaded(data: FederatedDataModule, name: str) -> tuple[Mapping[str, Images], list[str]]:
    loaded = data.load_domains()
    is_pair = isinstance(loaded, tuple) and len(loaded) == 2 and isinstance(loaded[0], Mapping)
    require(is_pair, f"{name}.load_domains must return the images of each domain by name, and the class names.")
    require(bool(loaded[0]), f"{name}.load_domains must give at least one domain.")
    return loaded


def _check_classes(domains: Mapping[str, Images], class_names: list[str], name: str) -> None:
    are_names = bool(class_names) and all(isinstance(each, str) and each.strip() for each in class_names)
    require(are_names, f"{name}: class names must be strings, since prompts are made of them; got {class_names}.")
    doubled = sorted({each for each in class_names if class_names.count(each) > 1})
    require(not doubled, f"{name}: a class has one name and a name one class; {doubled} come twice.")
    for domain, images in domains.items():
        _check_images(images, len(class_names), f"{name}: domain {domain!r}")
    present = set(map(int, chain.from_iterable(images.labels for images in domains.values())))
    missing = [each for label, each in enumerate(class_names) if label not in present]
    require(not missing, f"{name}: every class must have an image; {missing} have none.")


def _check_images(images: Images, num_classes: int, where: str) -> None:
    """Check the labels, the names and an image of a domain."""
    require(isinstance(images, Images), f"{where} must have labels, names, fingerprint, len() and images by position.")
    labels = np.asarray(images.labels)
    counts = (len(images), len(labels), len(images.names))
    require(len(set(counts)) == 1 and counts[0] > 0, f"{where} has {counts} images, labels and names; expected equal.")
    require(labels.dtype == np.int64, f"{where}: labels must be int64; they are {labels.dtype}.")
    odd = sorted({int(label) for label in labels if not 0 <= label < num_classes})
    require(not odd, f"{where}: labels must be positions in the {num_classes} class names; {odd} are none.")
    require(len(set(images.names)) == counts[0], f"{where}: each image must have a name of its own; some come twice.")
    absolute = [each for each in images.names if PurePath(each).is_absolute()]
    claim = f"{where}: names must be the same on every machine, so relative to the data's folder; got"
    require(not absolute, f"{claim} {absolute[:1]}.")
    # The first and the last: opening all would take minutes with a large data set.
    for position in (0, counts[0] - 1):
        image = images[position]
        is_rgb = isinstance(image, Image.Image) and image.mode == "RGB"
        require(is_rgb, f"{where}: an image must be a PIL image in RGB; number {position} is {image!r}.")


def _check_same(domains: Mapping[str, Images], again: Mapping[str, Images], name: str) -> None:
    """Check that images come in an order that never changes: splits are drawn by position."""
    require(list(domains) == list(again), f"{name}: made twice, it has other domains: {list(domains)}, {list(again)}.")
    for domain, images in domains.items():
        other = again[domain]
        same = list(images.names) == list(other.names) and np.array_equal(images.labels, other.labels)
        claim = f"{name}: made twice, domain {domain!r} must have the same images in the same order"
        require(same, f"{claim}, since splits are drawn by position. Sort what a folder or a set gives.")
        rows = np.arange(len(images))
        require(images.fingerprint(rows) == other.fingerprint(rows), f"{claim} and a fingerprint that stays.")


def _check_split(data: FederatedDataModule, other: FederatedDataModule, name: str) -> None:
    """Check that each image has one role, that no client trains on a held-out domain, and that the split stays."""
    # Splits are drawn from the order of the images, so two objects must agree.
    for each in (data, other):
        each.prepare_data()
        each.setup("fit")
    table = data.split_table()
    names = list(chain.from_iterable(row["images"] for row in table))
    require(len(names) == len(set(names)), f"{name}: an image must have one role; some are in several splits.")
    held_out = set(data.held_out_domains)
    trained = sorted({row["domain"] for row in table if row["role"] in ("train", "validation")} & held_out)
    require(not trained, f"{name}: no client may train on a held-out domain; {trained} have training images.")
    require(bool(data.clients), f"{name} must have a client.")
    require(data.split_hash == other.split_hash, f"{name}: made twice, it must be split the same.")
    try:
        json.dumps([data.describe(), table])
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name}: describe() and split_table() must give what JSON can hold; {error}.") from error


def _to_tensor(image: Image.Image) -> Tensor:
    pixels = np.asarray(image.resize((8, 8)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
