"""Options of a federation in groups: server, clients and runtime.

A fourth group, local training, is :class:`fedvlp.training.local_training.LocalTraining`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.roles import SelectionMetric
from fedvlp.core.state import Client
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import LocalTraining
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import ClosedFraction, FractionBelowOne, PositiveFloat, PositiveInt

log = logging.getLogger(__name__)

OnClientFailure = Literal["skip", "retry", "fail"]
"""How to handle a failing client: skip it for the rest of the round, retry it once, or end the run."""


@dataclass(frozen=True)
class Server:
    """How the server checks and combines the clients' updates.

    Args:
        aggregation: How the server combines several clients' uploads in every phase that averages, such as
            ``TrimmedMean`` or ``FedAdam``; the method's own mean if not given.
        min_clients: Number of updates that each phase needs. With fewer the run ends and can be resumed from its last
            checkpoint.
        max_update_norm: Largest norm of the difference between an update and the shared tensors. Larger updates are
            rejected. No limit if not given.
        secure_sum: Hide single updates from the server, which sees only their sum in fixed point. Works with methods
            and aggregations that need no single updates. Sites hide their updates by masks that cancel in the sum.

    >>> from fedvlp import CoordinateMedian
    >>> Server(aggregation=CoordinateMedian()).aggregation.min_clients
    3
    """

    aggregation: Aggregator | None = None
    min_clients: PositiveInt = field(default=1, compare=False)
    max_update_norm: PositiveFloat | None = None
    secure_sum: bool = False


@dataclass(frozen=True)
class Clients:
    """Which clients take part in a round, how to handle failing clients, and where to store their personal tensors.

    Args:
        cohort_size: Number of clients sampled each round; all clients if not given.
        on_failure: How to handle a failing client: ``skip`` skips it for the rest of the round, ``retry`` first lets it
            train again, ``fail`` ends the run.
        dropout: For studies: probability that a sampled client skips the round, drawn from the seed. At least as many
            clients stay as ``server.min_clients`` or the aggregation needs.
        stragglers: For studies: share of a round's clients that take only part of their steps. The clients and their
            parts, from a tenth to all, are drawn from the seed (FedProx, Li et al. 2020, Section 5.2).
        attack: Attack by some of the clients, such as ``SignFlip`` or ``BackdoorPatch``, to test an aggregation or a
            method; all clients are honest if not given.
        personal_on_disk: Store personal tensors and optimizer states in one file per client in the run folder, and load
            only those of the client in training.

    >>> from fedvlp import SignFlip
    >>> Clients(cohort_size=10, attack=SignFlip(clients=2)).on_failure
    'skip'
    """

    cohort_size: PositiveInt | None = None
    on_failure: OnClientFailure = field(default="skip", compare=False)
    dropout: FractionBelowOne = 0.0
    stragglers: ClosedFraction = 0.0
    attack: Attack | None = None
    personal_on_disk: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Runtime:
    """Threads, timeouts and output of the program. They change results only by rounding.

    Args:
        num_threads: CPU threads of PyTorch; PyTorch's default if not given. Tiny models are fastest with 1.
        default_callbacks: Write the run folder with checkpoints, metrics, table and plots.
        collective_timeout: Seconds that processes wait for another one, which may still train or evaluate, before the
            run ends.

    >>> Runtime(num_threads=4).collective_timeout
    1800
    """

    num_threads: PositiveInt | None = None
    default_callbacks: bool = True
    collective_timeout: PositiveFloat = 1800


@dataclass(frozen=True)
class RunOptions:
    """All options of a federation that determine its result. ``precision`` is resolved if it was ``auto``."""

    rounds: int = field(compare=False)
    seed: int
    precision: str
    local: LocalTraining = LocalTraining()
    server: Server = Server()
    clients: Clients = Clients()
    select: SelectionMetric = "accuracy"

    def describe(self) -> dict[str, Any]:
        """Describe the options as JSON values. A run can be resumed only with equal values.

        They include the number of rounds only if a schedule or an add-on depends on it.
        """
        described: dict[str, Any] = to_jsonable(self)
        if self.select == "accuracy":
            del described["select"]  # so that the description equals one without this option
        # A single add-on equals a list of one.
        described["local"]["add_ons"] = to_jsonable(self.local.listed_add_ons)
        parts = [self.local.schedule, *self.local.listed_add_ons]
        if any(part is not None and part.needs_rounds for part in parts):
            described["rounds"] = self.rounds
        return described


def check_several_labels(options: RunOptions) -> None:
    """Raise UserError for options that need images with one class each."""
    attack = options.clients.attack
    refused = [type(attack).__name__] if attack is not None and attack.needs_classes else []
    if refused := refused + [f"select={options.select}"] * (options.select != "accuracy"):
        raise UserError(f"Images with several labels do not support {' and '.join(refused)}. Remove the option.")


def check_clients(options: RunOptions, clients: Sequence[Client]) -> None:
    """Raise UserError for too few clients in a round, or for options that need clients if the data are pooled."""
    if any(client.is_pool for client in clients):
        needs_clients = {
            "server.aggregation": options.server.aggregation,
            "server.max_update_norm": options.server.max_update_norm,
            "clients.attack": options.clients.attack,
            "clients.dropout": options.clients.dropout,
            "clients.stragglers": options.clients.stragglers,
            "local.add_ons": options.local.add_ons,
        }
        if used := [name for name, value in needs_clients.items() if value not in (None, 0, [])]:
            raise UserError(
                f"The partition Pooled trains centrally, without clients, so it does not support {', '.join(used)}. "
                "Remove these options, or use another partition."
            )
        if options.local.reset_optimizer and options.rounds > 1:
            log.warning(
                "The optimizer starts from scratch in each round. For ordinary centralised training set "
                "trainer.local.reset_optimizer to false, as --config centralised does."
            )
    cohort = min(len(clients), options.clients.cohort_size or len(clients))
    needed = options.server.min_clients
    if cohort < needed:
        raise UserError(f"A round has {cohort} clients, but min_clients is {needed}. Lower it, or use more clients.")


def link_method_options(parser: Any) -> None:
    """Link a method's arguments in the parser to values of ``data`` and ``trainer``."""
    # Class names need an instantiated data module; the number of rounds is known from the parsed options.
    parser.link_arguments("data.method_names", "model.init_args.class_names", apply_on="instantiate")
    parser.link_arguments("data.source_domains", "model.init_args.domains", apply_on="instantiate")
    parser.link_arguments("data.num_clients", "model.init_args.num_clients", apply_on="instantiate")
    parser.link_arguments("trainer.rounds", "model.init_args.rounds")


GROUPS: dict[str, type] = {"local": LocalTraining, "server": Server, "clients": Clients, "runtime": Runtime}
"""The groups of a federation's options."""
REPLACEMENTS = {
    "max_epochs": "--trainer.rounds sets the number of rounds",
    "max_steps": "--trainer.rounds sets the number of rounds, --trainer.local.steps the steps of a client in each",
    "max_time": "--trainer.callbacks Timer with --trainer.callbacks.interval epoch ends a run after a round",
    "limit_train_batches": "--trainer.local.epochs or --trainer.local.steps sets how long a client trains in a round",
    "limit_val_batches": "evaluation always uses whole splits; --trainer.evaluate_every evaluates less often",
    "val_check_interval": "--trainer.evaluate_every sets the number of rounds between evaluations",
    "check_val_every_n_epoch": "--trainer.evaluate_every sets the number of rounds between evaluations",
    "log_every_n_steps": "metrics are logged once per round, as means over each client's steps",
    "enable_checkpointing": "--trainer.runtime.default_callbacks false writes neither checkpoints nor anything else",
    "enable_model_summary": "`fedvlp cost` lists what a method trains and sends",
    "accumulate_grad_batches": "--data.batch_size sets the number of images per step",
    "profiler": "metrics.csv has the seconds of each round; in Python use torch.profiler around Federation.fit",
    "detect_anomaly": "in Python call torch.autograd.set_detect_anomaly(True) before fit",
    **{field.name: f"it is --trainer.{name}.{field.name}" for name, group in GROUPS.items() for field in fields(group)},
}
"""Replacements of options of Lightning's Trainer, and of options that were given without their group."""
