"""What methods have in common whose clients send statistics of their images, for all clients to train with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.state import State
from fedvlp.core.strategies import Slots
from fedvlp.methods._shared.clients_tower import ClientsTower

SHARE = "share"
"""The phase in which a client sends statistics, without training; the one before it trains and collects them."""


class StatisticsSharer(ClientsTower):
    """Trains CLIP's image tower with statistics of all clients' training images, which the server only passes on.

    A client collects its own while it trains and sends them after that, in each round in which it takes part. So nobody
    has others' statistics in the first round, and a client that comes late is heard. What the server knows of a client
    stands in the client's own slot; a slot of zeros belongs to a client that has sent nothing yet.

    A subclass calls :meth:`keep_statistics`, changes ``own_statistics`` in training and reads ``statistics``.

    Attributes:
        statistics: of all clients, [K, ...].
        own_statistics: what the client has collected; it stays there between the phases.
        images_seen: how many images they are of.
    """

    train_only_personal = ("own_statistics", "images_seen")
    shares_of_images = ("statistics",)
    statistics: Tensor
    own_statistics: Tensor
    images_seen: Tensor

    def keep_statistics(self, num_clients: int, shape: Sequence[int]) -> None:
        """Makes room for the statistics of all clients, each a tensor of this shape, once all parameters are there."""
        (self._train,) = super().configure_phases()  # asked now, as no parameter is trainable in the other phase
        self.averages_over_batch = False  # draws are not those of a batch's parts
        self.register_buffer("statistics", torch.zeros(num_clients, *shape))
        self.register_buffer("own_statistics", torch.zeros(*shape))
        self.register_buffer("images_seen", torch.zeros(()))

    def configure_phases(self) -> Sequence[Phase]:
        """Returns two phases: train all and average it; send what was collected, which is not deployed."""
        slots = Slots("client", slots=len(self.statistics))
        share = Phase(SHARE, train=(), upload=("statistics",), strategy=slots, download=(), deploy=self._train.upload)
        return (self._train, share)

    def upload_state(self) -> State:
        """Returns what the client sends after the running phase: its own statistics after the second."""
        if self.context is not None and self.context.phase.name == SHARE:
            return {"statistics": self.own_statistics}
        return super().upload_state()

    def start_client(self, context: RoundContext) -> None:
        """Prepares for a client's phase; before training it forgets what it had collected in the round before."""
        super().start_client(context)
        if context.phase.name != SHARE and self.forgets():
            self.own_statistics.zero_()
            self.images_seen.zero_()

    def forgets(self) -> bool:
        """Returns whether statistics are collected anew in each round, as where they depend on what is trained."""
        return True

    @property
    def own_slot(self) -> int:
        """The slot of the client that trains; -1 where there are no clients."""
        return -1 if self.context is None else self.context.client.id

    def others(self) -> list[int]:
        """Returns the slots of the other clients of which something is known."""
        known = self.statistics.flatten(1).any(1).tolist()
        return [slot for slot, is_known in enumerate(known) if is_known and slot != self.own_slot]
