"""SWAD: fine-tuning on pooled images, with the mean of the weights of every step in a valley of the validation loss.

Paper: Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021. A centralised method.

Symbols: theta_i weights after step i -> ``visual``; their mean over the steps of a round -> ``mean``; l_i source
validation loss at the i-th look -> ``loss``; N_s -> ``start_patience``, N_e -> ``end_patience``, r -> ``tolerance``.
    t_s: the first look i with l_i = min(l_i, ..., l_{i + N_s - 1}); threshold = r mean(l_i, ..., l_{i + N_s - 1})
    t_e: the last look before N_e in a row whose losses are all above the threshold; else the last of all
    theta_SWAD = mean of theta_i from t_s to t_e     Algorithm 1; :class:`LossValley`
The losses are those of the source domains' validation images; nothing of a held-out domain is looked at.

Departures:
    * Looks: a look is a round, and the round of t_s counts as a whole, as in the released code. All rounds have equally
      many steps, so the mean of their means is the mean of their steps.
    * Algorithm: fedvlp follows the paper. The released mean leaves t_s out or counts a look twice, and includes looks
      before t_s: with its own settings, 7 % of the weight lies on other looks than the paper's (median of 60 loss
      curves). If training ends before N_e, what follows the last loss below the threshold counts. The mean is measured
      after every round.
    * Before t_s: the mean begins with the lowest loss so far; the paper averages all steps, the released code the last
      round's.
    * Network: CLIP's image tower, text features and AdamW, as in fine-tuning; the paper has a ResNet-50, a linear layer
      and Adam.
    * After t_e: training continues, so that its curve can be seen, but the deployed mean stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from lightning.pytorch.cli import OptimizerCallable

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, add_prefix, detached, select, strip_prefix
from fedvlp.core.strategies import Strategy
from fedvlp.methods.image_tower import ImageTowerLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveFloat, PositiveInt


class SWAD(ImageTowerLearner):
    """Trains CLIP's image tower, and deploys the mean of its weights over a valley of the source validation loss.

    Args:
        start_patience: N_s, so many rounds without a lower loss begin the mean, with the first of them.
        end_patience: N_e, so many rounds in a row with losses above the threshold end it, without them.
        tolerance: r, the threshold as a multiple of the mean loss of the rounds that began it; 1.2 on VLCS.
        layer_decay: Factor on the learning rate from each layer of the tower to the one below it, in (0, 1].
    """

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        start_patience: PositiveInt = 3,
        end_patience: PositiveInt = 6,
        tolerance: PositiveFloat = 1.3,
        layer_decay: FractionAboveZero = 0.7,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=3e-5, weight_decay=0.1),
    ) -> None:
        super().__init__(class_names, clip, "text", layer_decay, optimizer)
        if end_patience < start_patience:
            raise UserError(
                f"Expected end_patience to be at least start_patience {start_patience}; got {end_patience}."
            )
        self.valley = LossValley(start_patience, end_patience, tolerance)
        self.mean = deepcopy(self.visual).requires_grad_(False)  # over the steps of a round
        self.num_steps = 0

    def configure_phases(self) -> Sequence[Phase]:
        """Return one phase: train the tower, and give the server its weights and their mean over the steps."""
        return (Phase("train", train=("visual",), upload=("visual", "mean"), strategy=self.valley),)

    def shared_state(self) -> State:
        """Return the weights alone, for a mean is the server's business."""
        return detached(select(self.communicable_state(), ("visual",)))

    def start_client(self, context: RoundContext) -> None:
        """Begin a round, in which the mean has no step yet."""
        super().start_client(context)
        self.num_steps = 0

    @torch.no_grad()
    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Add the weights after a step to their mean."""
        # Not by PyTorch's AveragedModel, whose count of steps is on the GPU, which waits for each look at it.
        self.num_steps += 1
        for mean, value in zip(self.mean.parameters(), self.visual.parameters(), strict=True):
            if self.num_steps == 1:
                mean.copy_(value)
            mean.add_((value - mean) / self.num_steps)


def joined(mean: State, other: State) -> State:
    """Compute the mean over the rounds of two means.

    A mean has its number of rounds as ``count``; the mean of no rounds is empty.

    >>> one = {"w": torch.tensor([1.0]), "count": torch.tensor(1.0)}
    >>> two = {"w": torch.tensor([4.0]), "count": torch.tensor(2.0)}
    >>> joined(one, two), joined(one, {}) == one
    ({'w': tensor([3.]), 'count': tensor(3.)}, True)
    """
    if not mean or not other:
        return mean or other
    count = mean["count"] + other["count"]
    # By lerp, so that the mean of equal weights is exactly these.
    share = (other["count"] / count).item()
    return {name: torch.lerp(value, other[name], share) for name, value in mean.items()} | {"count": count}


@dataclass(frozen=True)
class Valley:
    """How far the search for the valley has come.

    Attributes:
        window: Means of the rounds since the lowest loss, until the valley has begun.
        losses: Their losses.
        threshold: A loss above it is out of the valley; None until the valley has begun.
        inside: Mean of all rounds that are certainly part of the valley.
        pending: Mean of the latest rounds above the threshold, which may turn out to be behind the valley's end.
        has_ended: Whether enough rounds were above the threshold to end the valley.
    """

    window: tuple[State, ...] = ()
    losses: tuple[float, ...] = ()
    threshold: float | None = None
    inside: State = field(default_factory=dict)
    pending: State = field(default_factory=dict)
    has_ended: bool = False

    @property
    def mean(self) -> State:
        """The mean from the beginning until now, or until the valley's end."""
        return reduce(joined, self.window, self.inside if self.has_ended else joined(self.inside, self.pending))

    def sorted_in(self, threshold: float, newest: State, loss: float) -> Valley:
        """Return the valley after one more round: part of it with all that were pending, or pending itself."""
        if loss > threshold:
            return replace(self, pending=joined(self.pending, newest))
        return replace(self, inside=joined(joined(self.inside, self.pending), newest), pending={})

    def to_memory(self) -> State:
        """Return it as tensors by name, which checkpoints hold."""
        memory = add_prefix(self.inside, "inside") | add_prefix(self.pending, "pending")
        for place, of_round in enumerate(self.window):
            memory |= add_prefix(of_round, f"window{place}")
        memory["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        threshold = -1.0 if self.threshold is None else self.threshold
        memory["progress"] = torch.tensor([threshold, self.has_ended], dtype=torch.float64)
        return memory

    @classmethod
    def from_memory(cls, memory: State) -> Valley:
        """Return the valley that was written; one that is to begin if there is none."""
        if "progress" not in memory:
            return cls()
        losses = tuple(memory["losses"].tolist())
        threshold, has_ended = memory["progress"].tolist()
        window = tuple(strip_prefix(memory, f"window{place}") for place in range(len(losses)))
        begun = None if threshold < 0 else threshold
        inside, pending = (strip_prefix(memory, part) for part in ("inside", "pending"))
        return cls(window, losses, begun, inside, pending, bool(has_ended))


@dataclass(frozen=True)
class LossValley(Strategy):
    """Trains on with the newest weights, and deploys their mean over the valley (Cha et al. 2021, Algorithm 1).

    The federation gives the loss after each round to ``after_validation``. Options are those of :class:`SWAD`.
    """

    uses_validation_loss = True

    start_patience: int
    end_patience: int
    tolerance: float

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Take the newest weights, and keeps their mean over the round's steps until its loss is known."""
        if not updates:
            return server
        upload = updates[0].state
        weights = select(upload, ("visual",))
        of_round = {name: upload[name.replace("visual", "mean", 1)] for name in weights}
        of_round["count"] = torch.ones((), dtype=torch.float64)
        newest = joined(strip_prefix(server.memory, "newest"), of_round)
        # Weights that no mean holds yet are deployed until one does.
        deployed = server.deployed if "progress" in server.memory else weights
        memory = server.memory | add_prefix(newest, "newest")
        return replace(server, shared=weights, deployed=deployed, memory=memory)

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Return the server's state once the validation loss of what it shares is known."""
        newest = strip_prefix(server.memory, "newest")
        if not newest:
            return server
        valley = self.extended(Valley.from_memory(server.memory), newest, loss)
        deployed = {name: value for name, value in valley.mean.items() if name != "count"}
        return replace(server, deployed=deployed, memory=valley.to_memory())

    def extended(self, valley: Valley, newest: State, loss: float) -> Valley:
        """Return the valley after one more round, from the mean of its steps and the validation loss behind it."""
        if valley.has_ended:
            return valley
        if valley.threshold is not None:
            extended = valley.sorted_in(valley.threshold, newest, loss)
            has_ended = extended.pending.get("count", 0) >= self.end_patience
            # What was pending was behind the end.
            return replace(valley, pending={}, has_ended=True) if has_ended else extended
        # Before the valley has begun, a loss below the window's first begins another window.
        if not valley.losses or loss < valley.losses[0]:
            valley = Valley()
        valley = replace(valley, window=(*valley.window, newest), losses=(*valley.losses, loss))
        if len(valley.losses) < self.start_patience:
            return valley
        threshold = self.tolerance * sum(valley.losses) / len(valley.losses)
        begun = Valley(threshold=threshold)
        for of_round, its_loss in zip(valley.window, valley.losses, strict=True):
            begun = begun.sorted_in(threshold, of_round, its_loss)
        return begun

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError unless all images are in one place."""
        if not all(client.is_pool for client in clients):
            raise UserError(
                "SWAD averages the steps of one training on the images of all source domains. "
                "Use the partition Pooled, as its config does."
            )
