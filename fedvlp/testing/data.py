"""The contract of data sets."""

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
    """Read and split a data set twice, and check the contract of data sets.

    Args:
        make: Function that creates the data set from scratch, always the same, such as ``lambda: MyImages(root,
            held_out="sketch", cache_dir=None)``. Disable the cache, because cached images are not read again.

    Raises:
        ContractError: If the data set breaks a rule.
        UserError: If the data set rejects its options or images.
    """
    data = make()
    require(isinstance(data, FederatedDataModule), f"Expected a FederatedDataModule, got a {type(data).__name__}.")
    other = make()
    require(other is not data, "Expected a function that creates a new data set, but it returned the same one twice.")
    name = type(data).__name__
    domains, class_names = _loaded(data, name)
    _check_classes(domains, class_names, name)
    _check_same(domains, _loaded(other, name)[0], name)
    _check_split(data, other, name)
    data.bind(_to_tensor, train_transform=_to_tensor)
    for client in data.clients:
        first, second = (list(data.train_dataloader(client, seed=3)) for _ in range(2))
        labels = torch.cat([batch[1] for batch in first])
        subject = f"{name}: client {client.name!r}"
        count = client.num_examples
        require(len(labels) == count > 0, f"{subject} must train on its {count} images, at least 1; got {len(labels)}.")
        are_labels = bool((labels < len(class_names)).all())
        require(are_labels, f"{subject} has labels beyond the {len(class_names)} classes.")
        same = all(torch.equal(one[0], other[0]) for one, other in zip(first, second, strict=True))
        require(same, f"{subject} must get the same batches for the same seed.")


def _loaded(data: FederatedDataModule, name: str) -> tuple[Mapping[str, Images], list[str]]:
    loaded = data.load_domains()
    is_pair = isinstance(loaded, tuple) and len(loaded) == 2 and isinstance(loaded[0], Mapping)
    require(is_pair, f"{name}.load_domains must return the images of each domain by name, and the class names.")
    require(bool(loaded[0]), f"{name}.load_domains must return at least one domain.")
    return loaded


def _check_classes(domains: Mapping[str, Images], class_names: list[str], name: str) -> None:
    are_names = bool(class_names) and all(isinstance(word, str) and word.strip() for word in class_names)
    require(are_names, f"{name}: class names must be strings, because prompts contain them; got {class_names}.")
    repeated = sorted({word for word in class_names if class_names.count(word) > 1})
    require(not repeated, f"{name}: class names must be distinct; {repeated} are repeated.")
    for domain, images in domains.items():
        _check_images(images, len(class_names), f"{name}: domain {domain!r}")
    present = set(map(int, chain.from_iterable(images.labels for images in domains.values())))
    missing = [word for label, word in enumerate(class_names) if label not in present]
    require(not missing, f"{name}: every class must have an image; {missing} have none.")


def _check_images(images: Images, num_classes: int, subject: str) -> None:
    require(isinstance(images, Images), f"{subject} must have labels, names, fingerprint, len() and images by index.")
    labels = np.asarray(images.labels)
    counts = (len(images), len(labels), len(images.names))
    is_equal = len(set(counts)) == 1 and counts[0] > 0
    require(is_equal, f"{subject} must have equal numbers of images, labels and names; got {counts}.")
    require(labels.dtype == np.int64, f"{subject}: labels must be int64, got {labels.dtype}.")
    wrong = sorted({int(label) for label in labels if not 0 <= label < num_classes})
    require(not wrong, f"{subject}: labels must be indices into the {num_classes} class names, got {wrong}.")
    require(len(set(images.names)) == counts[0], f"{subject}: names of images must be distinct.")
    absolute = [path for path in images.names if PurePath(path).is_absolute()]
    claim = f"{subject}: names must be the same on every machine, so relative to the data's folder; got"
    require(not absolute, f"{claim} {absolute[:1]}.")
    # Only the first and the last image: opening all would take minutes for a large data set.
    for index in (0, counts[0] - 1):
        image = images[index]
        is_rgb = isinstance(image, Image.Image) and image.mode == "RGB"
        require(is_rgb, f"{subject}: an image must be a PIL image in RGB; image {index} is {image!r}.")


def _check_same(domains: Mapping[str, Images], again: Mapping[str, Images], name: str) -> None:
    """Check that the order of the images never changes, because splits are drawn by index."""
    domain_names = [list(domains), list(again)]
    require(domain_names[0] == domain_names[1], f"{name} must always have the same domains, got {domain_names}.")
    for domain, images in domains.items():
        other = again[domain]
        same = list(images.names) == list(other.names) and np.array_equal(images.labels, other.labels)
        claim = f"{name}: domain {domain!r} must always have the same images in the same order"
        require(same, f"{claim}, because splits are drawn by index. Sort the files or images.")
        rows = np.arange(len(images))
        require(images.fingerprint(rows) == other.fingerprint(rows), f"{claim} and the same fingerprint.")


def _check_split(data: FederatedDataModule, other: FederatedDataModule, name: str) -> None:
    # Splits are drawn from the order of the images, so two objects must agree.
    for module in (data, other):
        module.prepare_data()
        module.setup("fit")
    table = data.split_table()
    names = list(chain.from_iterable(row["images"] for row in table))
    require(len(names) == len(set(names)), f"{name}: an image must have one role; some are in several splits.")
    held_out = set(data.held_out_domains)
    trained = sorted({row["domain"] for row in table if row["role"] in ("train", "validation")} & held_out)
    require(not trained, f"{name}: no client may train on a held-out domain; {trained} have training images.")
    require(bool(data.clients), f"{name} must have a client.")
    require(data.split_hash == other.split_hash, f"{name} must always be split the same way.")
    try:
        json.dumps([data.describe(), table])
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name}: describe() and split_table() must return JSON values; {error}.") from error


def _to_tensor(image: Image.Image) -> Tensor:
    pixels = np.asarray(image.resize((8, 8)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
