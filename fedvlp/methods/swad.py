"""SWAD: fine-tuning on pooled images, with the weights averaged over every step in a valley of the validation loss.

Paper: Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021. A centralised method.

Symbols: theta_i weights after step i -> ``visual``; their mean over the steps of a round -> ``mean``; l_i source
validation loss at evaluation i -> ``loss``; N_s -> ``start_patience``, N_e -> ``end_patience``, r -> ``tolerance``.
    t_s: the first evaluation i with l_i = min(l_i, ..., l_{i + N_s - 1}); threshold = r mean(l_i, ..., l_{i + N_s - 1})
    t_e: the last evaluation before N_e in a row with losses above the threshold; otherwise the last of all
    theta_SWAD = mean of theta_i from t_s to t_e     Algorithm 1; :class:`LossValley`
The losses use only the source domains' validation images, and no image of a held-out domain.

Deviations:
    * Evaluations: Like the released code, fedvlp evaluates once per round and averages the round of t_s as a whole. All
      rounds have equally many steps, so the mean of their means is the mean of their steps.
    * Interval: The released code omits t_s or counts an evaluation twice, and includes evaluations before t_s. With its
      settings, 7 % of the weight is outside the paper's interval (median of 60 loss curves), so fedvlp follows the
      paper.
    * No t_e: If training ends before N_e losses in a row are above the threshold, fedvlp averages until the last round.
    * No t_s: If training ends before t_s, the paper averages all steps, and the released code the steps of the last
      round. In this case, fedvlp averages from the round of the lowest loss, because t_s would be there if the loss no
      longer fell. The evaluation after each round uses the mean that would be deployed if training ended there.
    * Network: The paper uses a ResNet-50, a linear layer and Adam; fedvlp uses CLIP's image tower, text features and
      AdamW, as in fine-tuning.
    * After t_e: Training continues, to show the rest of the curve, without changing the deployed mean.
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
    """CLIP's image tower, deployed with its weights averaged over a valley of the source validation loss.

    Args:
        start_patience: Number N_s of rounds in a window with no loss below its first; the mean starts with this window.
        end_patience: Number N_e of consecutive rounds above the threshold that end the mean, which excludes them.
        tolerance: Ratio r of the threshold to the mean loss of the first window; 1.2 on VLCS.
        layer_decay: Factor on the learning rate from each layer of the tower to the layer below, in (0, 1].
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
        """Describe the only phase: train the tower, and upload its weights and their mean over the steps."""
        return (Phase("train", train=("visual",), upload=("visual", "mean"), strategy=self.valley),)

    def shared_state(self) -> State:
        """Collect only the weights, because the server keeps the mean."""
        return detached(select(self.communicable_state(), ("visual",)))

    def start_client(self, context: RoundContext) -> None:
        """Begin a round with an empty mean."""
        super().start_client(context)
        self.num_steps = 0

    @torch.no_grad()
    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Add the weights after a step to their mean."""
        # PyTorch's AveragedModel counts steps on the GPU, which would wait whenever the count is read.
        self.num_steps += 1
        for mean, value in zip(self.mean.parameters(), self.visual.parameters(), strict=True):
            if self.num_steps == 1:
                mean.copy_(value)
            mean.add_((value - mean) / self.num_steps)


def merge_means(mean: State, other: State) -> State:
    """Combine two means over rounds.

    ``count`` is the number of rounds of a mean; the mean of no rounds is empty.

    >>> one = {"w": torch.tensor([1.0]), "count": torch.tensor(1.0)}
    >>> two = {"w": torch.tensor([4.0]), "count": torch.tensor(2.0)}
    >>> merge_means(one, two), merge_means(one, {}) == one
    ({'w': tensor([3.]), 'count': tensor(3.)}, True)
    """
    if not mean or not other:
        return mean or other
    count = mean["count"] + other["count"]
    # With lerp, the mean of equal weights is exact.
    share = (other["count"] / count).item()
    return {name: torch.lerp(value, other[name], share) for name, value in mean.items()} | {"count": count}


@dataclass(frozen=True)
class SWAInterval:
    """State of the search for the interval over which weights are averaged."""

    window: tuple[State, ...] = ()  # means of the rounds since the lowest loss; empty once the interval has begun
    losses: tuple[float, ...] = ()  # losses of these rounds
    threshold: float | None = None  # maximum loss in the interval; None until it has begun
    inside: State = field(default_factory=dict)  # mean of all rounds that are certainly in the interval
    # Mean of the latest rounds above the threshold, which may turn out to be after the interval.
    pending: State = field(default_factory=dict)
    has_ended: bool = False  # whether enough rounds were above the threshold to end the interval

    @property
    def mean(self) -> State:
        """Mean from the start of the interval until now, or until its end."""
        start = self.inside if self.has_ended else merge_means(self.inside, self.pending)
        return reduce(merge_means, self.window, start)

    def add_round(self, threshold: float, newest: State, loss: float) -> SWAInterval:
        """Add a round: pending above the threshold, otherwise inside together with all pending rounds."""
        if loss > threshold:
            return replace(self, pending=merge_means(self.pending, newest))
        return replace(self, inside=merge_means(merge_means(self.inside, self.pending), newest), pending={})

    def to_memory(self) -> State:
        """Convert the state to named tensors for checkpoints."""
        memory = add_prefix(self.inside, "inside") | add_prefix(self.pending, "pending")
        for index, mean in enumerate(self.window):
            memory |= add_prefix(mean, f"window{index}")
        memory["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        threshold = -1.0 if self.threshold is None else self.threshold
        memory["progress"] = torch.tensor([threshold, self.has_ended], dtype=torch.float64)
        return memory

    @classmethod
    def from_memory(cls, memory: State) -> SWAInterval:
        """Restore the state from named tensors; without any, start a new search."""
        if "progress" not in memory:
            return cls()
        losses = tuple(memory["losses"].tolist())
        threshold, has_ended = memory["progress"].tolist()
        window = tuple(strip_prefix(memory, f"window{index}") for index in range(len(losses)))
        inside, pending = (strip_prefix(memory, part) for part in ("inside", "pending"))
        return cls(window, losses, None if threshold < 0 else threshold, inside, pending, bool(has_ended))


@dataclass(frozen=True)
class LossValley(Strategy):
    """Strategy that trains with the newest weights and deploys their mean over a loss valley (Algorithm 1).

    The federation passes the loss after each round to ``after_validation``. See :class:`SWAD` for the options.
    """

    uses_validation_loss = True

    start_patience: int
    end_patience: int
    tolerance: float

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Take the newest weights, and store their mean over the round's steps until its loss is known."""
        if not updates:
            return server
        upload = updates[0].state
        weights = select(upload, ("visual",))
        mean = {name: upload[name.replace("visual", "mean", 1)] for name in weights}
        mean["count"] = torch.ones((), dtype=torch.float64)
        newest = merge_means(strip_prefix(server.memory, "newest"), mean)
        # Until there is a mean, the newest weights are deployed.
        deployed = server.deployed if "progress" in server.memory else weights
        memory = server.memory | add_prefix(newest, "newest")
        return replace(server, shared=weights, deployed=deployed, memory=memory)

    def after_validation(self, server: ServerState, loss: float) -> ServerState:
        """Update the deployed mean once the validation loss of the shared weights is known."""
        newest = strip_prefix(server.memory, "newest")
        if not newest:
            return server
        interval = self.extended(SWAInterval.from_memory(server.memory), newest, loss)
        deployed = {name: value for name, value in interval.mean.items() if name != "count"}
        return replace(server, deployed=deployed, memory=interval.to_memory())

    def extended(self, interval: SWAInterval, newest: State, loss: float) -> SWAInterval:
        """Extend the interval by a round, given the mean of its steps and the validation loss after it."""
        if interval.has_ended:
            return interval
        if interval.threshold is not None:
            extended = interval.add_round(interval.threshold, newest, loss)
            has_ended = extended.pending.get("count", 0) >= self.end_patience
            # The pending rounds are after the end.
            return replace(interval, pending={}, has_ended=True) if has_ended else extended
        # Before the interval has begun, a loss below the window's first starts a new window.
        if not interval.losses or loss < interval.losses[0]:
            interval = SWAInterval()
        interval = replace(interval, window=(*interval.window, newest), losses=(*interval.losses, loss))
        if len(interval.losses) < self.start_patience:
            return interval
        threshold = self.tolerance * sum(interval.losses) / len(interval.losses)
        begun = SWAInterval(threshold=threshold)
        for mean, window_loss in zip(interval.window, interval.losses, strict=True):
            begun = begun.add_round(threshold, mean, window_loss)
        return begun

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError unless all images are pooled."""
        if not all(client.is_pool for client in clients):
            raise UserError(
                "SWAD averages the steps of one training on the images of all source domains. "
                "Use the partition Pooled, as its config does."
            )
