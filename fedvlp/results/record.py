"""Finished runs, read from their folders."""

from __future__ import annotations

import csv
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedvlp.core.roles import CENTRALISED
from fedvlp.results.predictions import PredictionsByRow, read_predictions
from fedvlp.utils.errors import UserError

ZERO_SHOT_ROW = "zero-shot CLIP"
LAST_ROW = "last round"
BEST_ROW = "best on source validation"
"""How the titles of a summary's rows begin; the number of the round follows."""

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
"""What the data of runs must have in common for their results to be compared."""

LINKED_OPTIONS = ("class_names", "clip", "domains", "num_clients", "rounds")
"""Options of a method that follow from data, CLIP and trainer."""

COSTS = ("upload_parameters", "download_parameters", "upload_bytes", "download_bytes")
"""What a run counted of the exchange of one client and round."""

SWEEP_FILE = "sweep.json"
RUN_FILES = ("summary.json", "config.yaml")
"""What a run writes at its end, and at its beginning."""


@dataclass(frozen=True)
class Record:
    """What a run wrote at its end.

    Attributes:
        folder: the run's folder.
        method: name of the method's class.
        options: the method's options, without those that follow from data, CLIP and trainer.
        clip: name of the frozen CLIP.
        clip_fingerprint: digest of its weights.
        optimizer: class and settings; None for a method that trains nothing.
        training: how clients trained, with the seed and the batch size.
        rounds: number of rounds.
        data: what ``FederatedDataModule.describe`` returned; empty if the run did not write it.
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
        return self._row(LAST_ROW)

    @property
    def best(self) -> Mapping[str, float]:
        """Accuracies in percent after the round that was best on source validation; as ``last`` if nothing trains."""
        return self._row(BEST_ROW)

    @property
    def baseline(self) -> Mapping[str, float]:
        """Accuracies in percent of zero-shot CLIP on the same images; empty if it was not measured."""
        return self.accuracy.get(ZERO_SHOT_ROW, {})

    @property
    def is_centralised(self) -> bool:
        """Whether the images of all source domains were in one place."""
        return self.data.get("partition") == CENTRALISED

    @property
    def key(self) -> Hashable:
        """Equal for runs whose results may be compared: same images, protocol, clients, split rule and CLIP.

        Held-out domains and seeds may differ. A run that does not describe its data is compared only with those of the
        same protocol and split.
        """
        return _canonical([self.key_of_images, self.data.get("partition")])

    @property
    def key_of_images(self) -> Hashable:
        """As ``key``, but also equal for runs that distribute the same images to other clients."""
        described = [self.data.get(name) for name in TABLE_KEYS if name != "partition"]
        # Without a description only the protocol's line and the split can say that images are the same.
        undescribed = None if self.data else (self.protocol, self.split)
        return _canonical([*described, undescribed, self.clip, self.clip_fingerprint])

    @property
    def settings(self) -> Hashable:
        """Equal for runs that differ only in seed, images and held-out domains: the runs of one row of a table."""
        how = [self.method, self.options, self.optimizer, self.training_without_seed, self.rounds]
        return _canonical([*how, self.is_centralised])

    @property
    def training_without_seed(self) -> dict[str, Any]:
        """How clients trained, except for the seed."""
        return {name: value for name, value in self.training.items() if name != "seed"}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """One row for each round, from ``metrics.csv``, without empty cells.

        Raises:
            UserError: if the file holds something else than numbers.
        """
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [_measured(row) for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as error:
            raise UserError(f"{path} is damaged: expected numbers below its titles. Make the run again.") from error

    @property
    def predictions(self) -> PredictionsByRow:
        """The predicted class of each test and held-out image, read from its file; empty if there is none.

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

    @property
    def sweep(self) -> str:
        """Name of the folder of the sweep that made the run; empty if none did."""
        return sweep_name(self.folder)

    def _row(self, name: str) -> Mapping[str, float]:
        for title, row in self.accuracy.items():
            if title.startswith(name) or len(self.accuracy) == 1:
                return row
        return {}


def load_record(folder: str | Path) -> Record:
    """Reads a finished run.

    Raises:
        UserError: if the folder is no run, the run has not ended, or its summary is damaged.
    """
    path = Path(folder) / "summary.json"
    if not path.is_file():
        state = "has not ended" if (Path(folder) / "config.yaml").is_file() else "is no run"
        raise UserError(f"{folder} {state}: there is no summary.json in it.")
    try:
        return _record(Path(folder), json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path} is no summary of a run: {reason}. Make the run again, or remove it.") from error


def _record(folder: Path, summary: Mapping[str, Any]) -> Record:
    # Conversions are the checks: whatever is of another type raises here, and not later in the middle of a table.
    model = summary["model"]
    init_args = dict(model["init_args"])
    clip = init_args.get("clip", "")
    counts = summary.get("communication_per_client_and_round")
    training = {**summary["training"], "batch_size": summary.get("batch_size")}
    return Record(
        folder=folder,
        method=model["class_path"].rpartition(".")[2],
        options={name: value for name, value in init_args.items() if name not in LINKED_OPTIONS},
        clip=str(clip.get("name", "")) if isinstance(clip, Mapping) else str(clip),
        clip_fingerprint=str(model["clip_fingerprint"]),
        optimizer=summary.get("optimizer"),
        training={**training, "seed": int(training["seed"])},
        rounds=int(summary["rounds"]),
        data=dict(summary.get("data", {})),
        split=str(summary["split"]),
        protocol=str(summary["protocol"]),
        held_out=tuple(map(str, summary["held_out"])),
        accuracy={title: _numbers(row) for title, row in summary["accuracy"].items()},
        communication={name: int(counts[name]) for name in COSTS} if counts else {},
        seconds=float(summary.get("seconds", 0.0)),
        versions=dict(summary["versions"]),
        features=dict(summary.get("features", {})),
        metrics={title: dict(scores) for title, scores in summary.get("metrics", {}).items()},
    )


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items()}


def _measured(row: Mapping[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value}


def _canonical(value: Any) -> Hashable:
    """Returns a string that is equal for equal values, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, default=str)


def sweep_name(run: Path) -> str:
    """Returns the name of the folder of the sweep that made a run; empty if none did."""
    sweeps = [parent.name for parent in run.absolute().parents if (parent / SWEEP_FILE).is_file()]
    return sweeps[0] if sweeps else ""


@dataclass(frozen=True)
class SavedPicture:
    """A picture in a run's folder, which ``fedvlp explain`` made.

    Attributes:
        path: the PNG file.
        title, caption: what a reader sees beside it.
        alt: what it shows, for readers who can't see it.
    """

    path: Path
    title: str
    caption: str
    alt: str


def saved_pictures(run: Path) -> tuple[list[SavedPicture], list[str]]:
    """Returns the pictures that explain a run, from the list beside them, and what is wrong with that list."""
    listed = run / "explanations" / "captions.json"
    if not listed.is_file():
        return [], []
    try:
        entries = json.loads(listed.read_text(encoding="utf-8"))
        # The name alone: a list of pictures must not lead out of its own folder.
        paths = [listed.parent / Path(entry["file"]).name for entry in entries]
        captions = [(entry["title"], entry["caption"], entry["alt"]) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{listed} can't be read ({error!r}). Make the explanations again."]
    pictures = [SavedPicture(path, *caption) for path, caption in zip(paths, captions, strict=True) if path.is_file()]
    missing = [f"{path} is missing. Make the explanations again." for path in paths if not path.is_file()]
    return pictures, missing


def find_records(paths: Sequence[str | Path]) -> tuple[list[Record], list[str]]:
    """Finds the finished runs at or below some paths.

    Of runs that are equal except for their folder, the one counts whose folder's name, a time, is the latest. A run
    that was stopped is not reported where a later one beside it ended.

    Args:
        paths: run folders, or folders of runs at any depth.

    Returns:
        The runs in the order of their paths, each once, and a line for each path or run folder that could not be read.
    """
    records: dict[Hashable, Record] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        folders = _run_folders(path)
        if not folders:
            problem = "no run is here or below" if path.is_dir() else "there is no such folder"
            problems.append(f"{path}: {problem}.")
        for folder in folders:
            try:
                record = load_record(folder)
            except UserError as error:
                if not _was_repeated(folder, folders):
                    problems.append(str(error))
                continue
            identity = (record.key, record.settings, record.seed, record.held_out, record.split)
            # Folders are named after the time at which a run began, so the later one has the greater name.
            if identity not in records or records[identity].folder.name < record.folder.name:
                records[identity] = record
    return list(records.values()), problems


def _run_folders(path: Path) -> list[Path]:
    """Returns the folders of runs, ended or not, at or below a path, sorted."""
    if any((path / name).is_file() for name in RUN_FILES):
        return [path]
    folders: set[Path] = set()
    for name in RUN_FILES:
        folders.update(file.parent for file in path.rglob(name))
    return sorted(folders)


def _was_repeated(folder: Path, folders: Sequence[Path]) -> bool:
    """Whether a run did not end, but one beside it that began later did."""
    # A summary that can't be read is a problem to report, whatever came later.
    if (folder / "summary.json").is_file():
        return False
    later = [other for other in folders if other.parent == folder.parent and other.name > folder.name]
    return any((other / "summary.json").is_file() for other in later)
