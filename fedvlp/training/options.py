"""The options of a federation in groups: what the server does, which clients take part, what the program uses.

How a client trains is the group :class:`fedvlp.training.local_training.LocalTraining`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedvlp.core.aggregation.base import Aggregator
from fedvlp.core.state import Client
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import LocalTraining
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import ClosedFraction, FractionBelowOne, PositiveFloat, PositiveInt

log = logging.getLogger(__name__)

OnClientFailure = Literal["skip", "retry", "fail"]
"""How to handle a failing client: skip it for the rest of the round, let it try once more, or end the run."""


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
    min_clients: PositiveInt = field(default=1, compare=False)
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
    on_failure: OnClientFailure = field(default="skip", compare=False)
    dropout: FractionBelowOne = 0.0
    stragglers: ClosedFraction = 0.0
    attack: Attack | None = None
    personal_on_disk: bool = field(default=False, compare=False)


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


@dataclass(frozen=True)
class RunOptions:
    """All options of a federation that determine a result; ``auto`` as ``precision`` is resolved."""

    rounds: int = field(compare=False)
    seed: int
    precision: str
    local: LocalTraining = LocalTraining()
    server: Server = Server()
    clients: Clients = Clients()

    def describe(self) -> dict[str, Any]:
        """Describe the options as plain values, which must be equal for a run to be resumed.

        The number of rounds is among them only if a schedule or an add-on depends on it.
        """
        described: dict[str, Any] = to_jsonable(self)
        # One add-on and a list of it are the same.
        described["local"]["add_ons"] = to_jsonable(self.local.listed_add_ons)
        parts = [self.local.schedule, *self.local.listed_add_ons]
        if any(part is not None and part.needs_rounds for part in parts):
            described["rounds"] = self.rounds
        return described


def check_clients(options: RunOptions, clients: Sequence[Client]) -> None:
    """Raise UserError for too few clients in a round, or options of clients with pooled data."""
    if any(client.is_pool for client in clients):
        needs_clients = {
            "server.aggregation": options.server.aggregation,
            "server.max_update_norm": options.server.max_update_norm,
            "clients.attack": options.clients.attack,
            "clients.dropout": options.clients.dropout,
            "clients.stragglers": options.clients.stragglers,
            "local.add_ons": options.local.add_ons,
        }
        if wrong := [name for name, value in needs_clients.items() if value not in (None, 0, [])]:
            raise UserError(
                f"The partition Pooled trains centrally, without clients, so there can be no {', '.join(wrong)}. "
                "Leave that out, or take another partition."
            )
        if options.local.reset_optimizer and options.rounds > 1:
            log.warning(
                "The optimizer starts from scratch in each round. Ordinary centralised training keeps it: "
                "set trainer.local.reset_optimizer to false, as --config centralised does."
            )
    cohort = min(len(clients), options.clients.cohort_size or len(clients))
    needed = options.server.min_clients
    if cohort < needed:
        raise UserError(f"A round has {cohort} clients, but min_clients is {needed}. Lower it, or let more take part.")


def link_method_options(parser: Any) -> None:
    """Make a parser of the keys ``model``, ``data`` and ``trainer`` fill in what a method takes of the other two."""
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
