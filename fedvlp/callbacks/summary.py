"""The final table, and ``summary.json``."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from fedvlp.callbacks.measures import Baselines
from fedvlp.core.balance import UNAVAILABLE, Balance, describe_balance, is_imbalanced
from fedvlp.core.metrics import all_scores
from fedvlp.core.predictions import name_accuracy
from fedvlp.core.protocols import FederatedData
from fedvlp.core.roles import CENTRALISED, ROLES, selection_column
from fedvlp.results.predictions import read_predictions
from fedvlp.results.record import BEST_ROW, LAST_ROW, ZERO_SHOT_ROW, row_name
from fedvlp.results.rounds import AccuracyRows, accuracy_table, best_round, divergence, format_accuracies, is_accuracy
from fedvlp.runs.descriptions import describe_data
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import COUNTS
from fedvlp.training.prediction import describe_scores
from fedvlp.utils.files import write_json
from fedvlp.utils.plugins import find_plugins
from fedvlp.version import __version__

PACKAGES = ("torch", "lightning", "open_clip_torch", "numpy", "torchvision")
MAX_CLIENTS = 12
"""Maximum number of clients that are listed before training."""


class Summary(FederationCallback):
    """Printer of accuracies next to baselines, and writer of a summary with versions, seed and split."""

    def __init__(self, baselines: Baselines) -> None:
        self.baselines = baselines
        self.balance: dict[str, Balance] = {}  # by row title without the round

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Describe the run, and write the split."""
        federation: RunView = trainer
        data = federation.data
        # A resumed run restores it before this hook.
        self.balance = self.balance if federation.run_state.history else {}
        federation.fabric.print(
            f"{type(pl_module).__name__} on {_name_clients(data)}, "
            f"{len(data.class_names)} classes, split {data.split_hash}, {federation.fabric.device}\n{data.protocol}",
            flush=True,
        )
        # Written at the start, so that a stopped run also records its training images.
        if federation.is_global_zero and hasattr(data, "split_table"):
            splits = {"hash": data.split_hash, "splits": data.split_table()}
            write_json(Path(federation.log_dir) / "splits.json", splits)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Store the scores by class of the last and the best round."""
        history = trainer.run_state.history
        if any(map(is_accuracy, history[-1])):
            self.balance[LAST_ROW] = trainer.balance
            if best_round(history, selection_column(trainer.options.select)) is history[-1]:
                self.balance[BEST_ROW] = trainer.balance

    def state_dict(self) -> dict[str, Any]:
        """Save the scores by class, which a resumed run cannot recompute."""
        return dict(self.balance)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scores by class."""
        self.balance = state_dict

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the table and write the file."""
        federation: RunView = trainer
        if not federation.is_global_zero:
            return
        history = federation.run_state.history
        rows = accuracy_table(self.baselines.scores, history, federation.options.select)
        self.balance = {**self.baselines.balance, **self.balance}
        # Aggregators in strategies may also come from plug-ins.
        parts = [pl_module, federation.data, *_walk_dataclasses([phase.strategy for phase in federation.phases])]
        plugins = find_plugins(parts)
        summary = {**_summary(federation, rows, plugins), "balance": self.balance}
        _print_accuracies(federation, rows, self.balance)
        last = LAST_ROW if history else ZERO_SHOT_ROW
        if federation.has_several_labels:
            federation.fabric.print(*describe_scores(summary.get("metrics", {}).get(last, {})), "", sep="\n")
        _print_costs(federation)
        for line in describe_balance(self.balance.get(last, {}), f"warning: {last}"):
            federation.fabric.print(line)
        untrained = self.baselines.scores.get(ZERO_SHOT_ROW, {})
        num_classes = None if federation.has_several_labels else len(federation.data.class_names)
        diverged = divergence(untrained, history, num_classes)
        if diverged:
            federation.fabric.print(f"warning: {diverged}")
        if lost := summary.get("lost_rounds"):
            federation.fabric.print(f"warning: the rounds {lost} were lost, so no simulation can reproduce this run")
        for package, used in plugins.items():
            federation.fabric.print(f"plug-in {package} {used['version']}: {', '.join(used['classes'])}")
        federation.fabric.print(f"run folder: {federation.log_dir}")
        write_json(Path(federation.log_dir) / "summary.json", summary)


def _name_clients(data: FederatedData) -> str:
    if data.clients[0].is_pool:
        return f"the pooled {data.clients[0].num_examples} images of all source domains"
    # List only a few of possibly thousands of clients.
    names = [f"{client.name}: {client.num_examples} images" for client in data.clients[:MAX_CLIENTS]]
    if len(data.clients) > len(names):
        names.append("...")
    return f"{len(data.clients)} clients ({', '.join(names)})"


def _print_accuracies(federation: RunView, rows: AccuracyRows, balance: Mapping[str, Balance]) -> None:
    write = federation.fabric.print
    score = name_accuracy("accuracy", federation.has_several_labels)
    write(f"\n{federation.data.protocol}\n{format_accuracies(rows, balance, score)}")
    roles: set[str] = set()
    uncounted: set[str] = set()
    for title, row in rows:
        row_roles = {name.split("/")[0] for name in row if is_accuracy(name)}
        roles |= row_roles
        if not federation.has_several_labels:
            uncounted |= row_roles.difference(balance.get(row_name(title), row_roles))
    # The note of a harmonic mean also explains its parts.
    explained = [part for name in roles if ROLES[name].note for part in ROLES[name].harmonic_of]
    for name, role in ROLES.items():
        if role.note and name in roles and name not in explained:
            write(role.note)
    # The table has these columns only for means of roles.
    by_class = chain.from_iterable(scores.items() for scores in balance.values())
    if any("/" not in name and is_imbalanced(scores) for name, scores in by_class):
        write("balanced: mean of the classes' accuracies; largest class: accuracy of always predicting that class")
    if names := [role.images for name, role in ROLES.items() if name in uncounted and not role.is_computed]:
        write(f"{UNAVAILABLE}: {', '.join(names)}")
    write("")


def _print_costs(federation: RunView) -> None:
    history = federation.run_state.history
    if history:
        last = _last_counted(history)
        sent = (
            f"each client and round: {last['upload_parameters']:,} parameters ({last['upload_bytes']:,} bytes) up, "
            f"{last['download_parameters']:,} parameters ({last['download_bytes']:,} bytes) down"
        )
        if federation.data.clients[0].is_pool:
            sent = f"{CENTRALISED}: nothing is sent"
        seconds = sum(row["seconds"] for row in history)
        federation.fabric.print(f"{sent}; {seconds:.1f} s for {len(history)} rounds")


def _last_counted(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Find the last row of a round that was not lost, since lost rounds count no updates."""
    return next((row for row in reversed(history) if "lost" not in row), history[-1] if history else {})


def _walk_dataclasses(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _walk_dataclasses(each)
    elif is_dataclass(value):
        yield value
        yield from _walk_dataclasses([getattr(value, field.name) for field in fields(value)])


def _summary(federation: RunView, rows: AccuracyRows, plugins: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    data = federation.data
    history = federation.run_state.history
    last = _last_counted(history)
    lost = [row["round"] for row in history if "lost" in row]
    # Missing measurements have no entry: sites return no predictions, and runs without noise have no privacy loss.
    predictions = read_predictions(Path(federation.log_dir))
    metrics = {row: all_scores(by_split, data.class_names) for row, by_split in predictions.items()}
    accuracy = {}
    for title, row in rows:
        accuracy[title] = {name: value for name, value in row.items() if is_accuracy(name)}
    spent = {name.removeprefix("privacy/"): value for name, value in last.items() if name.startswith("privacy/")}
    return {
        **federation.description,
        **describe_data(federation.module, data),
        "rounds": federation.run_state.server.round,
        "configs": list(federation.configs),
        **({"lost_rounds": lost} if lost else {}),
        "accuracy": accuracy,
        **({"metrics": metrics} if metrics else {}),
        "communication_per_client_and_round": {name: last.get(name, 0) for name in COUNTS},
        **({"privacy": spent} if spent else {}),
        "seconds": sum(row["seconds"] for row in history),
        "versions": {
            "fedvlp": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
            **{package: used["version"] for package, used in plugins.items()},
        },
        **({"plugins": plugins} if plugins else {}),
    }
