"""The images whose gradients are inverted, and for each another one of its class to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.core.state import Client
from fedvlp.tools.audit.images import ImageGroup, RunImages
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

Place = tuple[ImageGroup, int]
"""An image: its group and its place in it."""


@dataclass(frozen=True)
class Target:
    """Images whose gradient is inverted.

    Attributes:
        client: whose they are.
        names: what they are called.
        images: as the method's transform puts them out.
        labels: their classes.
        of_same_class: for each another image of its class.
    """

    client: Client
    names: list[str]
    images: Float[Tensor, "B 3 V V"]
    labels: Int[Tensor, "B"]
    of_same_class: Float[Tensor, "B 3 V V"]


def choose_targets(images: RunImages, options: InversionOptions, seed: int) -> list[Target]:
    """Returns images of the clients in turn, drawn at random.

    Raises:
        UserError: if a client has too few.
    """
    clients = list(images.training)
    targets = []
    for number in range(options.gradients):
        client = clients[number % len(clients)]
        places = _places(images.training[client])
        if len(places) < options.images:
            raise UserError(
                f"The client {client.name!r} has {len(places)} training images, fewer than inversion.images "
                f"({options.images}). Pass fewer."
            )
        # Of equally many draws of one client, each goes on where the one before it stopped.
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(derive_seed(seed, client.id)))
        first = number // len(clients) * options.images
        chosen = [places[int(order[(first + index) % len(places)])] for index in range(options.images)]
        targets.append(_target(client, chosen, images, derive_seed(seed, client.id, number)))
    return targets


def _places(groups: Sequence[ImageGroup]) -> list[Place]:
    places: list[Place] = []
    for group in groups:
        places += [(group, index) for index in range(len(group))]
    return places


def _target(client: Client, chosen: Sequence[Place], images: RunImages, seed: int) -> Target:
    """Reads the chosen images, and for each another one of its class, of any client."""
    labels = [int(group.labels[index]) for group, index in chosen]
    generator = torch.Generator().manual_seed(seed)
    others = []
    for place, label in zip(chosen, labels, strict=True):
        candidates = _candidates(images, place, label)
        group, index = candidates[int(torch.randint(len(candidates), (1,), generator=generator))]
        others.append(group.read([index]))
    return Target(
        client=client,
        names=[group.names[index] for group, index in chosen],
        images=torch.cat([group.read([index]) for group, index in chosen]),
        labels=torch.tensor(labels),
        of_same_class=torch.cat(others),
    )


def _candidates(images: RunImages, place: Place, label: int) -> list[Place]:
    """Returns all other training images of a class; where there is none, those of the other classes."""
    same: list[Place] = []
    others: list[Place] = []
    for groups in images.training.values():
        for group in groups:
            of_class = (group.labels == label).tolist()
            for index, is_same in enumerate(of_class):
                if group is not place[0] or index != place[1]:
                    (same if is_same else others).append((group, index))
    return same or others or [place]
