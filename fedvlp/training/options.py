"""The options of a federation in groups: what the server does, which clients take part, what the program uses.

How a client trains is the group :class:`fedvlp.training.local_training.LocalTraining`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.state import Client
from fedvlp.training.callback import RunView
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.task import OnClientFailure
from fedvlp.utils.digests import class_and_options
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import ClosedFraction, FractionBelowOne, PositiveFloat, PositiveInt

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """What the server does with the clients' updates.

    Args:
        aggregation: How the server makes one state of several clients' uploads, such as ``TrimmedMean`` or ``FedAdam``,
            in every phase that averages; the method's own mean if not given.
        min_clients: Updates that each phase needs; with fewer the run ends, and can be resumed from its last
            checkpoint.
        max_update_norm: The largest norm of an update's difference to what is shared; a larger one is left out. Any if
            not given.
        secure_sum: Let the server see no update but the sum of all, in fixed point; for methods and aggregations that
            need no more. Sites hide their updates by masks that cancel in the sum.
    """

    aggregation: Aggregator | None = None
    min_clients: PositiveInt = 1
    max_update_norm: PositiveFloat | None = None
    secure_sum: bool = False


@dataclass(frozen=True)
class Clients:
    """Which clients take part in a round, what becomes of those that fail, and where they keep what is theirs.

    Args:
        cohort_size: Clients sampled each round; all of them if not given.
        on_failure: What is done about a client that fails: ``skip`` leaves it out for the rest of the round, ``retry``
            first lets it train again, ``fail`` ends the run.
        dropout: Probability that a client of a round's cohort takes no part in it, for studies; drawn from the seed. As
            many as ``server.min_clients`` or the aggregation needs always stay.
        stragglers: Share of a round's clients that do only a part of their steps, for studies; who, and which part
            from a tenth to all, is drawn from the seed (FedProx, Li et al. 2020, Section 5.2).
        attack: What some clients do against the others, such as ``SignFlip`` or ``BackdoorPatch``, to test an
            aggregation or a method; all clients are honest if not given.
        personal_on_disk: Keep what belongs to the clients (personal tensors, kept optimizers) in a file a client in the
            run's folder; only those of the client that trains are in memory.
    """

    cohort_size: PositiveInt | None = None
    on_failure: OnClientFailure = "skip"
    dropout: FractionBelowOne = 0.0
    stragglers: ClosedFraction = 0.0
    attack: Attack | None = None
    personal_on_disk: bool = False


@dataclass(frozen=True)
class Runtime:
    """What the program uses of the machine, and what it writes; changes results by rounding at most.

    Args:
        num_threads: CPU threads of PyTorch; its own choice if not given. A tiny model is fastest with 1.
        default_callbacks: Write the run folder with checkpoints, metrics, table and plots.
        collective_timeout: Seconds that processes wait for one of them before the run ends, such as for the one that
            evaluates for all or that still trains.
    """

    num_threads: PositiveInt | None = None
    default_callbacks: bool = True
    collective_timeout: PositiveFloat = 1800


class ConfiguredRun(RunView):
    """A run with all its options, as :class:`fedvlp.Federation` documents them."""

    local: LocalTraining
    server: Server
    clients: Clients
    seed: int
    precision: str


def check_clients(run: ConfiguredRun, clients: Sequence[Client]) -> None:
    """Raises UserError if a round has fewer clients than its phases need, or if only a federation has an option."""
    # A cohort that is larger than all clients is all of them.
    if any(client.is_pool for client in clients):
        _check_pooled(run)
    cohort = min(len(clients), run.clients.cohort_size or len(clients))
    needed = run.server.min_clients
    if cohort < needed:
        raise UserError(f"A round has {cohort} clients, but min_clients is {needed}. Lower it, or let more take part.")


def _check_pooled(run: ConfiguredRun) -> None:
    """Raises UserError for what only a federation has; warns where the optimizer starts again each round."""
    of_federation = {
        "server.aggregation": run.server.aggregation,
        "server.max_update_norm": run.server.max_update_norm,
        "clients.attack": run.clients.attack,
        "clients.dropout": run.clients.dropout,
        "clients.stragglers": run.clients.stragglers,
        "local.add_ons": run.local.add_ons,
    }
    if wrong := [name for name, value in of_federation.items() if value not in (None, 0, [])]:
        raise UserError(
            f"The partition Pooled trains centrally, without clients, so there can be no {', '.join(wrong)}. "
            "Leave that out, or take another partition."
        )
    if run.local.reset_optimizer and run.rounds > 1:
        log.warning(
            "The optimizer starts from scratch in each round. Ordinary centralised training keeps it: "
            "set trainer.local.reset_optimizer to false, as --config centralised does."
        )


def describe_training(run: ConfiguredRun) -> dict[str, Any]:
    """Returns the options that must be equal for a run to be resumed; the number of rounds may differ."""
    described = {
        "seed": run.seed,
        "cohort_size": run.clients.cohort_size,
        "max_update_norm": run.server.max_update_norm,
        **run.local.describe(run.rounds),
        "precision": run.precision,
    }
    # Left out where they are not given, so that runs with and without such an option differ by its name alone.
    if run.server.aggregation is not None:
        described["aggregation"] = class_and_options(run.server.aggregation)
    if run.server.secure_sum:
        described["secure_sum"] = True
    if run.clients.attack is not None:
        described["attack"] = class_and_options(run.clients.attack)
    if run.clients.dropout:
        described["client_dropout"] = run.clients.dropout
    if run.clients.stragglers:
        described["stragglers"] = run.clients.stragglers
    return described


def link_method_options(parser: Any) -> None:
    """Makes a parser of the keys ``model``, ``data`` and ``trainer`` fill in what a method takes of the other two."""
    # A data module must be made to know its classes; the number of rounds is known from the words alone.
    parser.link_arguments("data.class_names", "model.init_args.class_names", apply_on="instantiate")
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
    "limit_val_batches": "accuracies are of whole splits; --trainer.evaluate_every measures less often",
    "val_check_interval": "--trainer.evaluate_every sets after how many rounds results are measured",
    "check_val_every_n_epoch": "--trainer.evaluate_every sets after how many rounds results are measured",
    "log_every_n_steps": "metrics are logged once a round, as means over each client's steps",
    "enable_checkpointing": "--trainer.runtime.default_callbacks false writes neither checkpoints nor anything else",
    "enable_model_summary": "`fedvlp cost` lists what a method trains and sends",
    "accumulate_grad_batches": "--data.batch_size sets how many images a step sees",
    "profiler": "metrics.csv has the seconds of each round; in Python use torch.profiler around Federation.fit",
    "detect_anomaly": "in Python call torch.autograd.set_detect_anomaly(True) before fit",
    **{field.name: f"it is --trainer.{name}.{field.name}" for name, group in GROUPS.items() for field in fields(group)},
}
"""What to use in place of an option of Lightning's Trainer, or of one that was given without its group."""
