"""The mean of weights over a valley of the source validation loss: SWAD's choice of steps, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedvlp.core.state import Client, ClientUpdate, ServerState, State, select
from fedvlp.core.strategies.base import Strategy
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import add_prefix, strip_prefix

MEAN = "mean.module"
WEIGHTS = "visual"


@dataclass(frozen=True)
class Mean:
    """A mean over rounds.

    Attributes:
        state: the tensors; none of no rounds.
        count: over how many rounds.
    """

    state: State = field(default_factory=dict)
    count: int = 0

    def joined(self, other: Mean) -> Mean:
        """Returns the mean over the rounds of both.

        >>> one, two = Mean({"w": torch.tensor([1.0])}, 1), Mean({"w": torch.tensor([4.0])}, 2)
        >>> one.joined(two).state["w"].item(), one.joined(Mean()) == one
        (3.0, True)
        """
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        share = other.count / count
        return Mean({name: torch.lerp(value, other.state[name], share) for name, value in self.state.items()}, count)


@dataclass(frozen=True)
class Valley:
    """Where the search for the valley stands; a value that is replaced and never changed.

    Attributes:
        window: means of the rounds since the lowest loss, until the valley has begun.
        losses: their losses.
        threshold: above it a loss is out of the valley; None until it has begun.
        kept: the mean of all rounds that are part of it whatever comes.
        pending: that of the latest rounds with losses above the threshold, which may turn out to be behind its end.
        has_ended: whether so many were above that the valley is over.
    """

    window: tuple[Mean, ...] = ()
    losses: tuple[float, ...] = ()
    threshold: float | None = None
    kept: Mean = field(default_factory=Mean)
    pending: Mean = field(default_factory=Mean)
    has_ended: bool = False

    @property
    def mean(self) -> Mean:
        """The mean from the beginning until now, or until its end."""
        mean = self.kept if self.has_ended else self.kept.joined(self.pending)
        for of_round in self.window:
            mean = mean.joined(of_round)
        return mean


@dataclass(frozen=True)
class LossValley(Strategy):
    """Trains on with the newest weights, and deploys their mean over the valley (Cha et al. 2021, Algorithm 1).

    The federation says the loss after each round, in ``after_validation``.

    Args:
        start_patience: N_s, so many rounds without a lower loss begin the valley, with the first of them.
        end_patience: N_e, so many rounds in a row above the threshold end it.
        tolerance: r, the threshold as a multiple of the mean of the losses with which it began.
    """

    uses_validation_loss = True

    start_patience: int
    end_patience: int
    tolerance: float

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Takes the newest weights, and keeps their mean over the round's steps until its loss is known."""
        if not updates:
            return server
        weights = select(updates[0].state, (WEIGHTS,))
        of_round = Mean({name: updates[0].state[name.replace(WEIGHTS, MEAN, 1)] for name in weights}, 1)
        newest = _read(server.memory, "newest").joined(of_round)
        # Weights that no mean holds yet are deployed until one does.
        deployed = server.deployed if "swad.progress" in server.memory else weights
        memory = server.memory | _written("newest", newest)
        return replace(server, shared=weights, deployed=deployed, memory=memory)

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Returns the server's state once the validation loss of what it shares is known."""
        newest = _read(server.memory, "newest")
        if not newest.count:
            return server
        valley = self.extended(_read_valley(server.memory), newest, loss)
        return replace(server, deployed=valley.mean.state, memory=_written_valley(valley))

    def extended(self, valley: Valley, newest: Mean, loss: float) -> Valley:
        """Returns the valley after one more round.

        Args:
            valley: before.
            newest: the mean of the round's steps.
            loss: the source validation loss behind it.
        """
        if valley.has_ended:
            return valley
        if valley.threshold is not None:
            sorted_in = _sorted_in(valley, valley.threshold, newest, loss)
            has_ended = sorted_in.pending.count >= self.end_patience
            return replace(valley, pending=Mean(), has_ended=True) if has_ended else sorted_in
        if not valley.losses or loss < valley.losses[0]:
            valley = Valley()
        valley = replace(valley, window=(*valley.window, newest), losses=(*valley.losses, loss))
        if len(valley.losses) < self.start_patience:
            return valley
        threshold = self.tolerance * sum(valley.losses) / len(valley.losses)
        begun = Valley(threshold=threshold)
        for of_round, its_loss in zip(valley.window, valley.losses, strict=True):
            begun = _sorted_in(begun, threshold, of_round, its_loss)
        return begun

    def check(self, clients: Sequence[Client]) -> None:
        """Raises UserError unless all images lie in one place."""
        if not all(client.is_pool for client in clients):
            raise UserError(
                "SWAD averages the steps of one training on the images of all source domains. "
                "Use the partition Pooled, as its config does."
            )


def _sorted_in(valley: Valley, threshold: float, newest: Mean, loss: float) -> Valley:
    """Returns a valley after one more round that is part of it, with all that were pending, or pending itself."""
    if loss > threshold:
        return replace(valley, pending=valley.pending.joined(newest))
    return replace(valley, kept=valley.kept.joined(valley.pending).joined(newest), pending=Mean())


def _written_valley(valley: Valley) -> State:
    """Returns a valley as tensors by name."""
    memory = _written("kept", valley.kept) | _written("pending", valley.pending)
    for place, of_round in enumerate(valley.window):
        memory |= _written(f"window{place}", of_round)
    memory["swad.losses"] = torch.tensor(valley.losses, dtype=torch.float64)
    threshold = -1.0 if valley.threshold is None else valley.threshold
    memory["swad.progress"] = torch.tensor([threshold, valley.has_ended], dtype=torch.float64)
    return memory


def _read_valley(memory: State) -> Valley:
    """Returns the valley that was written; one that is to begin if there is none."""
    if "swad.progress" not in memory:
        return Valley()
    losses = memory["swad.losses"].tolist()
    known, has_ended = memory["swad.progress"].tolist()
    threshold = None if known < 0 else known
    window = tuple(_read(memory, f"window{place}") for place in range(len(losses)))
    return Valley(window, tuple(losses), threshold, _read(memory, "kept"), _read(memory, "pending"), bool(has_ended))


def _written(name: str, mean: Mean) -> dict[str, Tensor]:
    if not mean.count:
        return {}
    return {f"swad.{name}.count": torch.tensor(mean.count), **add_prefix(mean.state, f"swad.{name}")}


def _read(memory: State, name: str) -> Mean:
    count = memory.get(f"swad.{name}.count")
    return Mean() if count is None else Mean(strip_prefix(memory, f"swad.{name}"), int(count.item()))
