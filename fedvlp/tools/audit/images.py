"""The images of a run by whose they are: each client's training images, and each domain's that nobody trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.core.state import Client
from fedvlp.data import FederatedDataModule
from fedvlp.data.loaders import ImageDataset
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class ImageGroup:
    """Images of one domain, none of which is read yet.

    Attributes:
        domain: its name.
        dataset: in which they are.
        positions: their places in it.
        names: what each is called.
    """

    domain: str
    dataset: ImageDataset
    positions: Sequence[int]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def labels(self) -> Int[Tensor, "N"]:
        """The class of each."""
        return torch.from_numpy(self.dataset.labels[list(self.positions)])

    def read(self, chosen: Sequence[int]) -> Float[Tensor, "B 3 V V"]:
        """Returns some of the images, as the method's transform puts them out."""
        return torch.stack([self.dataset[self.positions[index]][0] for index in chosen])

    def sample(self, count: int, generator: torch.Generator) -> ImageGroup:
        """Returns so many of the images, drawn at random and in their order; all if there are no more."""
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values.tolist()
        positions = [self.positions[index] for index in chosen]
        return ImageGroup(self.domain, self.dataset, positions, [self.names[index] for index in chosen])


@dataclass(frozen=True)
class RunImages:
    """All images of a run that an audit needs.

    Attributes:
        training: each client's training images, a group for each of its domains, in the clients' order.
        measured: images of each source domain on which nobody trained, by domain.
        role: ``test``, or ``validation`` where there is no test split.
    """

    training: Mapping[Client, Sequence[ImageGroup]]
    measured: Mapping[str, ImageGroup]
    role: str


def images_of_run(data: FederatedDataModule) -> RunImages:
    """Returns the images of a data module that is set up and bound to the method's transform.

    Raises:
        UserError: if they lie in one place.
    """
    if any(client.is_pool for client in data.clients):
        raise UserError("This run is centralised: nothing was sent that could be audited. Take a federated one.")
    table = data.split_table()
    clients = {client.id: client for client in data.clients}
    training: dict[Client, list[ImageGroup]] = {client: [] for client in data.clients}
    dataset: Any = data.train_dataloader().dataset  # type: ignore[union-attr]
    start = 0
    for entry in table:
        if entry["role"] == "train":
            stop = start + len(entry["images"])
            group = ImageGroup(entry["domain"], dataset, range(start, stop), entry["images"])
            training[clients[entry["client"]]].append(group)
            start = stop
    role = "test" if any(entry["role"] == "test" for entry in table) else "validation"
    return RunImages(training, _measured(data, table, role), role)


def _measured(data: FederatedDataModule, table: Sequence[Mapping[str, Any]], role: str) -> dict[str, ImageGroup]:
    """Returns the images of a role by domain."""
    # The loaders stand in the order of the table, among those of the roles that they serve together.
    served = ("validation",) if role == "validation" else ("test", "held_out")
    loaders = data.val_dataloader() if role == "validation" else data.test_dataloader()
    entries = [entry for entry in table if entry["role"] in served]
    measured: dict[str, ImageGroup] = {}
    for entry, loader in zip(entries, loaders, strict=True):
        if entry["role"] == role:
            dataset: Any = loader.dataset
            names = entry["images"]
            measured[entry["domain"]] = ImageGroup(entry["domain"], dataset, range(len(names)), names)
    return measured
