"""Local training of a client in one phase: its length, learning rates and optimizer."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain, count, islice, repeat
from typing import Any

from lightning import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, Loader
from fedvlp.core.state import Client, State, detached, strip_prefix
from fedvlp.training.add_ons.base import AddOn, ClipGradients
from fedvlp.utils.errors import UserError, check_ranges
from fedvlp.utils.ranges import FractionAboveZero, NonNegativeInt, PositiveFloat, PositiveInt

# Initial gradient scale of each client with precision 16-mixed. With PyTorch's default the first steps would overflow.
GRADIENT_SCALE = 1024.0


class Schedule(ABC):
    """A factor on the learning rate of every optimizer of a round. Subclasses are frozen dataclasses.

    Schedules that papers on centralized training define by epochs are applied by rounds, for any number of epochs.

    Attributes:
        warmup_rounds: Rounds at the start that train at ``warmup_lr``. The decay starts after them.
        warmup_lr: Learning rate in these rounds. Parameter groups with other rates are scaled in proportion.
        needs_rounds: Whether the factor depends on the total number of rounds.
    """

    warmup_rounds: NonNegativeInt
    warmup_lr: PositiveFloat
    needs_rounds = False

    def factor(self, round: int, rounds: int, lr: float | None) -> float:
        """Compute the factor after ``round`` of ``rounds`` rounds; UserError if a warm-up lacks ``lr``."""
        if round < self.warmup_rounds:
            if lr is None:
                raise UserError("A warm-up needs a method with an optimizer option. Leave warmup_rounds at 0.")
            return self.warmup_lr / lr
        return self.decay(round - self.warmup_rounds, rounds)

    @abstractmethod
    def decay(self, round: int, rounds: int) -> float:
        """Compute the factor in a round; ``round`` is counted from the end of the warm-up."""


@dataclass(frozen=True)
class Constant(Schedule):
    """Constant learning rate after a warm-up.

    Args:
        warmup_rounds: Rounds at the start that train at ``warmup_lr``.
        warmup_lr: Learning rate in these rounds, > 0.

    >>> [Constant(warmup_rounds=1, warmup_lr=0.001).factor(r, 3, 0.004) for r in range(3)]
    [0.25, 1.0, 1.0]
    """

    warmup_rounds: NonNegativeInt = 1
    warmup_lr: PositiveFloat = 1e-5

    def decay(self, round: int, rounds: int) -> float:
        """Compute the constant factor 1."""
        return 1.0


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """Exponential decay: the factor in round r is gamma^r.

    Args:
        gamma: Factor from one round to the next, in (0, 1].
        warmup_rounds: Rounds at the start that train at ``warmup_lr``.
        warmup_lr: Learning rate in these rounds, > 0.

    >>> [ExponentialDecay(gamma=0.5).factor(r, 4, 0.002) for r in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """

    gamma: FractionAboveZero
    warmup_rounds: NonNegativeInt = 0
    warmup_lr: PositiveFloat = 1e-5

    def decay(self, round: int, rounds: int) -> float:
        """Compute gamma^r."""
        return float(self.gamma**round)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Cosine decay: the factor in round r is (1 + cos(pi r / R)) / 2, as in CoOp.

    CoOp and methods based on it warm up for one epoch at 1e-5, and count r from the end of the warm-up. Since fedvlp
    counts rounds instead of epochs, one of 15 rounds is then the warm-up.

    Args:
        warmup_rounds: Rounds at the start that train at ``warmup_lr``.
        warmup_lr: Learning rate in these rounds, > 0.

    >>> [round(CosineDecay(warmup_rounds=1).factor(r, 4, 0.002), 3) for r in range(4)]
    [0.005, 1.0, 0.854, 0.5]
    """

    warmup_rounds: NonNegativeInt = 0
    warmup_lr: PositiveFloat = 1e-5
    needs_rounds = True

    def decay(self, round: int, rounds: int) -> float:
        """Compute (1 + cos(pi r / R)) / 2."""
        return (1 + math.cos(math.pi * round / rounds)) / 2


@dataclass(frozen=True)
class LocalTraining:
    """Local training of every client in one phase of a round.

    Args:
        epochs: Passes over a client's data in each phase; 0.5 communicates after every half pass.
        steps: Optimizer steps of a client in each phase, instead of epochs.
        schedule: Learning rate over rounds, such as ``ExponentialDecay`` or ``CosineDecay``; constant if not given.
        reset_optimizer: Build a new optimizer for each client in each round. Otherwise its moments stay on the client.
        add_ons: Changes to local training that work with any method, such as ``FedProx``, ``Scaffold`` or ``FedDyn``,
            applied in the given order.
        gradient_clip_val: Largest joint gradient norm of all trained parameters; longer gradients are shortened to it.
            No clipping if not given.

    >>> from fedvlp import FedProx
    >>> local = LocalTraining(epochs=2, add_ons=FedProx(weight=0.1))
    >>> local.num_steps(Client(id=0, domain=0, num_examples=100), batch_size=16)
    14
    """

    epochs: PositiveFloat = 1
    steps: PositiveInt | None = None
    schedule: Schedule | None = None
    reset_optimizer: bool = True
    add_ons: AddOn | list[AddOn] | None = None
    gradient_clip_val: PositiveFloat | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        # The default, one epoch, can't be distinguished from epochs=1.
        if self.steps is not None and self.epochs != 1:
            raise UserError(
                f"Expected local.steps or local.epochs, got both ({self.steps} and {self.epochs:g}). Add "
                "--trainer.local.epochs=1 to keep the steps, or --trainer.local.steps=null to keep the epochs."
            )
        for add_on in self.all_add_ons if self.gradient_clip_val is not None else ():
            if add_on.needs_gradients:
                raise UserError(f"{type(add_on).__name__} needs gradients unchanged. Remove local.gradient_clip_val.")

    @property
    def listed_add_ons(self) -> tuple[AddOn, ...]:
        """The add-ons of ``add_ons`` as a tuple."""
        if self.add_ons is None:
            return ()
        return tuple(self.add_ons) if isinstance(self.add_ons, (list, tuple)) else (self.add_ons,)

    @property
    def all_add_ons(self) -> tuple[AddOn, ...]:
        """The listed add-ons, followed by gradient clipping."""
        # Last, so that clipping includes the gradients of all other add-ons, as in Lightning.
        clipping = () if self.gradient_clip_val is None else (ClipGradients(self.gradient_clip_val),)
        return (*self.listed_add_ons, *clipping)

    def batches(self, make_loader: Callable[[int], Loader], round: int) -> tuple[Iterator[Batch], int]:
        """Iterate over a client's batches in one phase of a round, and count them.

        Whole epochs and ``steps`` shuffle again in each round. A fraction of an epoch takes the next batches of an
        endless sequence of passes, even if the client skipped earlier rounds. ``make_loader`` maps the number of a
        shuffle to the batches in that order.
        """
        spans_rounds = self.steps is None and self.epochs != int(self.epochs)
        loader = make_loader(0 if spans_rounds else round)
        steps = num_steps(len(loader), self.epochs, self.steps)
        if not spans_rounds:
            return islice(chain.from_iterable(repeat(loader)), steps), steps
        # Earlier passes are skipped by arithmetic. Earlier batches of the first pass are skipped by reading them.
        pass_number, num_done = divmod(round * steps, len(loader))
        passes = chain.from_iterable(make_loader(number) for number in count(pass_number))
        return islice(passes, num_done, num_done + steps), steps

    def num_steps(self, client: Client, batch_size: int) -> int:
        """Compute the number of optimizer steps that a client takes in one phase."""
        return num_steps(-(-client.num_examples // batch_size), self.epochs, self.steps)

    def factor(self, round: int, rounds: int, lr: float | None) -> float:
        """Compute the factor on the learning rate ``lr`` after ``round`` of ``rounds`` rounds."""
        return 1.0 if self.schedule is None else self.schedule.factor(round, rounds, lr)


@cache
def num_steps(num_batches: int, epochs: float, steps: int | None) -> int:
    """Compute the number of optimizer steps in one phase, rounding partial batches up.

    >>> num_steps(30, 0.1, None), num_steps(5, 0.5, None), num_steps(5, 2, None), num_steps(5, 2, 7)
    (3, 3, 10, 7)
    """
    # As an exact fraction, because 0.1 * 30 is more than 3 in floating point.
    return math.ceil(Fraction(str(epochs)) * num_batches) if steps is None else steps


def make_optimizer(fabric: Fabric, module: FederatedModule, factor: float, state: State) -> Any:
    """Make the module's optimizer, wrapped by Fabric; None if nothing is trainable.

    Learning rates are multiplied by ``factor``, except in groups with ``scheduled: False``. The optimizer continues
    from the moments in ``state``, which may be empty.
    """
    optimizer = module.configure_optimizers()
    if optimizer is None:
        return None
    if not isinstance(optimizer, Optimizer):
        raise UserError(
            f"{type(module).__name__}.configure_optimizers must return one optimizer or None; got a "
            f"{type(optimizer).__name__}. For a schedule over rounds pass --trainer.local.schedule."
        )
    for group in optimizer.param_groups:
        if group.get("scheduled", True):
            group["lr"] *= factor
    if state:
        load_optimizer_state(optimizer, module.communicable_state(), state)
    return fabric.setup_optimizers(optimizer)


def reset_gradient_scale(fabric: Fabric) -> None:
    """Reset the gradient scaler of 16-mixed, so that a client does not depend on earlier clients."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None:
        scaler.load_state_dict({**scaler.state_dict(), "scale": GRADIENT_SCALE, "_growth_tracker": 0})


def optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> State:
    """Copy an optimizer's moments, named ``<parameter>/<moment>``; raise UserError if one is not a tensor."""
    # By name rather than index, so that a method may list its parameters in another order later.
    names = {parameter: name for name, parameter in tensors.items()}
    state: State = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                state[f"{names[parameter]}/{key}"] = value
            elif value is not None:
                raise UserError(
                    f"{type(optimizer).__name__} stores {key!r} as {type(value).__name__}, but only tensors can stay "
                    "on clients. Set trainer.local.reset_optimizer to true, or use SGD, Adam or AdamW."
                )
    return detached(state)


def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor], state: State) -> None:
    """Load moments from :func:`optimizer_state` into a new optimizer; its own learning rates stay."""
    names = {parameter: name for name, parameter in tensors.items()}
    by_index: dict[int, State] = {}
    # PyTorch numbers the parameters consecutively through all groups.
    for index, parameter in enumerate(chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        if moments := strip_prefix(state, names[parameter]):
            by_index[index] = {name: value.clone() for name, value in moments.items()}
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})
