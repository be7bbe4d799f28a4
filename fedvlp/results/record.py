"""One finished run, read from its folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from fedvlp.core.roles import CENTRALISED
from fedvlp.results.confusion import Confusions, read_confusions
from fedvlp.results.predictions import OfRows, read_predictions
from fedvlp.utils.errors import UserError

TABLE_KEYS = (
    "name",
    "images",
    "classes",
    "new_classes",
    "class_split",
    "targets",
    "kind",
    "partition",
    "shots",
    "split_rule",
    "validation_fraction",
    "test_fraction",
    "split_seed",
)
"""What runs must have in common in their data's description to stand in one table."""

LINKED_OPTIONS = ("class_names", "clip", "domains", "num_clients", "rounds")
"""Options of a method that data, CLIP and trainer decide."""

REQUIRED_KEYS = ("model", "protocol", "split", "training", "held_out", "rounds", "accuracy", "versions")
"""What every ``summary.json`` has."""

VALUES: dict[str, type | tuple[type, ...]] = {
    "model": dict,
    "model.class_path": str,
    "model.init_args": dict,
    "model.clip_fingerprint": str,
    "protocol": str,
    "split": str,
    "training": dict,
    "training.seed": int,
    "held_out": list,
    "rounds": int,
    "accuracy": dict,
    "versions": dict,
}
"""Of which sort the values of a summary are."""

OPTIONAL_VALUES: dict[str, type | tuple[type, ...]] = {
    "optimizer": (dict, NoneType),
    "data": dict,
    "data.name": str,
    "data.images": str,
    "data.domains": list,
    "data.classes": list,
    "data.new_classes": list,
    "data.class_split": str,
    "data.targets": list,
    "data.kind": str,
    "data.partition": str,
    "data.shots": (int, NoneType),
    "data.split_rule": str,
    "data.validation_fraction": (int, float),
    "data.test_fraction": (int, float),
    "data.split_seed": int,
    "communication_per_client_and_round": dict,
    "seconds": (int, float),
    "features": dict,
    "metrics": dict,
}
"""The same of those that a run may not have written."""

COSTS = ("upload_parameters", "download_parameters", "upload_bytes", "download_bytes")
"""What a run counted of the exchange of one client and round."""


@dataclass(frozen=True)
class Record:
    """What a run wrote at its end.

    Attributes:
        folder: the run's folder.
        method: name of the method's class.
        options: the method's options, without what data, CLIP and trainer decide.
        clip: name of the frozen CLIP.
        clip_fingerprint: digest of its weights.
        optimizer: class and settings; None for a method that trains nothing.
        training: how clients trained, with the seed; and the batch size.
        rounds: number of rounds.
        data: what ``FederatedDataModule.describe`` says; empty for a run that did not write it.
        split: digest of which image was in which split.
        protocol: what was trained on, by whom, and what it was measured on, in one line.
        held_out: names of the held-out domains.
        accuracy: accuracies in percent by the row's title, then by ``<role>/<domain>`` or by role for the mean.
        communication: parameters and bytes, up and down, of one client and round.
        seconds: time of all rounds.
        versions: of fedvlp, Python and the packages that numbers depend on.
        features: what the feature cache saved; empty if the run did not write it.
        metrics: what is measured beside accuracy, by row, split and name; empty if the run did not write it.
    """

    folder: Path
    method: str
    options: Mapping[str, Any]
    clip: str
    clip_fingerprint: str
    optimizer: Mapping[str, Any] | None
    training: Mapping[str, Any]
    rounds: int
    data: Mapping[str, Any]
    split: str
    protocol: str
    held_out: tuple[str, ...]
    accuracy: Mapping[str, Mapping[str, float]]
    communication: Mapping[str, int]
    seconds: float
    versions: Mapping[str, str]
    features: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The seed of training."""
        return int(self.training["seed"])

    @property
    def last(self) -> Mapping[str, float]:
        """Accuracies in percent after the last round; those of the only row for a method that trains nothing."""
        return self._row("last round")

    @property
    def best(self) -> Mapping[str, float]:
        """Accuracies in percent after the round that was best on source validation; as ``last`` if nothing trains."""
        return self._row("best on source validation")

    @property
    def baseline(self) -> Mapping[str, float]:
        """Accuracies in percent of zero-shot CLIP on the same images; empty if it was not measured."""
        return self.accuracy.get("zero-shot CLIP", {})

    @property
    def is_centralised(self) -> bool:
        """Whether the images of all source domains lay in one place."""
        return self.data.get("partition") == CENTRALISED

    @property
    def key(self) -> Hashable:
        """Equal for runs whose results belong in one table: of the same images, protocol, split rule and CLIP.

        Held-out domains and seeds may differ. A run that does not describe its data stands with those of the same
        protocol and split alone.
        """
        return _hashable([self.key_of_images, self.data.get("partition")])

    @property
    def key_of_images(self) -> Hashable:
        """As ``key``, but also equal for runs that deal the same images out to other clients."""
        described = [self.data.get(name) for name in TABLE_KEYS if name != "partition"]
        undescribed = None if self.data else (self.protocol, self.split)
        return _hashable([*described, undescribed, self.clip, self.clip_fingerprint])

    @property
    def settings(self) -> Hashable:
        """Equal for runs that differ in seed, images and held-out domains alone: the rows of a table."""
        how = [self.method, self.options, self.optimizer, self.training_without_seed, self.rounds]
        return _hashable([*how, self.is_centralised])

    @property
    def training_without_seed(self) -> dict[str, Any]:
        """How clients trained, in all but the seed."""
        return {name: value for name, value in self.training.items() if name != "seed"}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """One row for each round, from ``metrics.csv``, without what was not measured.

        Raises:
            UserError: if a row has more cells than there are columns, or a cell is no number.
        """
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [_measured(row) for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as error:
            raise UserError(
                f"{path} is damaged: it should hold numbers below its titles. Make the run again."
            ) from error

    @cached_property
    def confusions(self) -> Confusions:
        """Which classes the images were taken for on which nobody trained; empty if the run did not write it.

        Raises:
            UserError: if the file is damaged.
        """
        return read_confusions(self.folder, self.data.get("classes", []))

    @property
    def predictions(self) -> OfRows:
        """What each image was taken for on which nobody trained, read from its file; empty if there is none.

        Raises:
            UserError: if the file is damaged.
        """
        return read_predictions(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's whole configuration; empty if it was made in Python."""
        path = self.folder / "config.yaml"
        if not path.is_file():
            return {}
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}

    def _row(self, title: str) -> Mapping[str, float]:
        """Returns the row whose title begins so, or the only one, as of a method that trains nothing."""
        for name, row in self.accuracy.items():
            if name.startswith(title) or len(self.accuracy) == 1:
                return row
        return {}


def load_record(folder: str | Path) -> Record:
    """Reads a finished run.

    Raises:
        UserError: if the folder is no run, or one that has not ended.
    """
    path = Path(folder) / "summary.json"
    if not path.is_file():
        state = "has not ended" if (Path(folder) / "config.yaml").is_file() else "is no run"
        raise UserError(f"{folder} {state}: there is no summary.json in it.")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        # Of JSON that is no mapping, such as a number, this fails with a TypeError.
        missing = [name for name in REQUIRED_KEYS if name not in summary]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} can't be read ({error}). Make the run again, or remove it.") from error
    if missing:
        raise UserError(f"{path} is no summary of a run: it lacks {', '.join(missing)}.")
    try:
        _check_values(summary)
        return _record(Path(folder), summary)
    except ValueError as error:
        raise UserError(f"{path} is no summary of a run: {error}. Make the run again.") from error


def _check_values(summary: Mapping[str, Any]) -> None:
    """Checks the sort of every value that is read.

    Raises:
        ValueError: if a summary lacks one, or one is of another sort; without the value, which may be of any file.
    """
    for name, sort in (VALUES | OPTIONAL_VALUES).items():
        parent, _, key = name.rpartition(".")
        holder = summary.get(parent, {}) if parent else summary
        if key not in holder:
            if name in VALUES:
                raise ValueError(f"it lacks {name}")
            continue
        if not isinstance(holder[key], sort):
            raise ValueError(f"its {name} is of another type than a run writes")
    if not summary["accuracy"]:
        raise ValueError("expected accuracy to have a row")
    counts = summary.get("communication_per_client_and_round")
    if counts and not set(COSTS) <= set(counts):
        raise ValueError(f"expected communication_per_client_and_round to have {', '.join(COSTS)}")


def _record(folder: Path, summary: Mapping[str, Any]) -> Record:
    model = summary["model"]
    options = {name: value for name, value in model["init_args"].items() if name not in LINKED_OPTIONS}
    return Record(
        folder=folder,
        method=model["class_path"].rpartition(".")[2],
        options=options,
        clip=_clip_name(model["init_args"].get("clip", "")),
        clip_fingerprint=model["clip_fingerprint"],
        optimizer=summary.get("optimizer"),
        training={**summary["training"], "batch_size": summary.get("batch_size")},
        rounds=summary["rounds"],
        data=summary.get("data", {}),
        split=summary["split"],
        protocol=summary["protocol"],
        held_out=tuple(summary["held_out"]),
        accuracy=summary["accuracy"],
        communication=summary.get("communication_per_client_and_round", {}),
        seconds=summary.get("seconds", 0.0),
        versions=summary["versions"],
        features=summary.get("features", {}),
        metrics=summary.get("metrics", {}),
    )


def _clip_name(clip: Any) -> str:
    """Returns the name of a CLIP, which is saved alone or as a mapping with its weights."""
    return str(clip.get("name", "")) if isinstance(clip, Mapping) else str(clip)


def _measured(row: Mapping[str, str]) -> dict[str, float]:
    """Returns the cells of a CSV row that are not empty, as numbers."""
    return {name: float(value) for name, value in row.items() if value}


def _hashable(value: Any) -> Hashable:
    """Returns text that is equal for equal values, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, default=str)
