"""What TRIP's routers are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fedvlp.methods.trip.routing import KeyInit, make_keys
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveFloat, PositiveInt, Seed

Routing = Literal["token", "image", "uniform", "random", "random_tokens", "learned_token", "learned_image"]
Experts = Callable[[], Float[Tensor, "E d"]]
"""Gives the experts' place in the joint space, for the router that asks for it."""


@dataclass(frozen=True)
class RouterOptions:
    """What a router is made from; TRIP's arguments of the same names say what each is."""

    routing: Routing
    num_experts: PositiveInt
    train_capacity: PositiveFloat | None
    eval_capacity: PositiveFloat | None
    key_init: KeyInit
    key_seed: Seed
    matched_to: Literal["keys", "experts"]
    cluster_start: Literal["random", "keys"]

    def __post_init__(self) -> None:
        """Refuses options that make no sense.

        Raises:
            UserError: If clusters start at keys that do not exist.
        """
        if self.matched_to == "experts" and self.cluster_start == "keys":
            raise UserError("Clusters matched to experts have no keys to start at. Use cluster_start=random.")

    def keys(self, width: int) -> Float[Tensor, "E W"]:
        """Returns the keys for items of this width."""
        return make_keys(self.key_init, self.num_experts, width, self.key_seed)
