"""Finished runs, read from their folders: one record a run, and all of them as one pandas DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlp.core.balance import Balance
from fedvlp.core.roles import BASELINES, CENTRALISED, OUT_OF_DISTRIBUTION
from fedvlp.results.predictions import PredictionsByRow, read_predictions
from fedvlp.utils.config_files import read_run_config
from fedvlp.utils.digests import digest
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json

if TYPE_CHECKING:
    import pandas as pd

ZERO_SHOT_ROW = BASELINES["zero_shot"]
CLASS_MEANS_ROW = BASELINES["class_means"]
LAST_ROW = "last round"
BEST_ROW = "best on source validation"
"""The titles of a summary's rows; the number of the round follows the last two."""

TABLE_KEYS = (
    *("name", "images", "classes", "new_classes", "class_split", "targets", "kind", "partition", "shots"),
    *("split_rule", "validation_fraction", "test_fraction", "split_seed"),
)
"""What the data of runs must have in common for their results to be compared."""

LINKED_OPTIONS = ("class_names", "clip", "domains", "num_clients", "rounds")
"""Options of a method that follow from data, CLIP and trainer."""

COSTS = ("upload_parameters", "download_parameters", "upload_bytes", "download_bytes")
SCORES = ("balanced_accuracy", "largest_class", "macro_f1", "calibration_error")
WORST = ("worst_domain", "worst_client")
DETECTION = ("auroc", "fpr_at_95")
ABOUT = ("run", "comparison", "settings", "method", "data", "protocol", "clients", "shots", "clip", "held_out")
MEASURED = ("row", "role", "domain", "accuracy", *SCORES, *WORST, *DETECTION)
COLUMNS = (*ABOUT, "seed", "rounds", *MEASURED, *COSTS, "bytes", "seconds")
"""The columns of ``load_runs``."""

SWEEP_FILE = "sweep.json"
RUN_FILES = ("summary.json", "config.yaml")
"""What a run writes at its end, and at its beginning."""


@dataclass(frozen=True)
class Record:
    """What a run wrote at its end.

    Attributes:
        options: the method's options, without those that follow from data, CLIP and trainer.
        clip_fingerprint: digest of the frozen CLIP's weights.
        optimizer: class and settings; None for a method that trains nothing.
        training: Options of training that were set, by their names without the group, such as ``epochs``.
        data: what ``FederatedDataModule.describe`` returned; empty if the run did not write it.
        split: digest of which image was in which split.
        protocol: what was trained on, by whom, and what it was measured on, in one line.
        accuracy: accuracies in percent by the row's title, then by ``<role>/<domain>`` or by role for the mean.
        communication: parameters and bytes, up and down, of one client and round.
        versions: of fedvlp, Python and the packages that numbers depend on.
        metrics: what is measured beside accuracy, by row, split and name; empty if the run did not write it.
        tuning: how ``fedvlp tune`` chose its options; empty if nobody did.
        balance: Scores by class, by row without its round; a row lacks roles whose sites report no counts by class.
        configs: Names of the configs on the command line, such as ``methods/promptfl``; empty for a run from Python.
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
    metrics: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    balance: Mapping[str, Balance] = field(default_factory=dict)
    configs: Sequence[str] = ()

    @classmethod
    def from_summary(cls, folder: Path, summary: Mapping[str, Any]) -> Record:
        """Take a record from the content of ``summary.json``."""
        model = summary["model"]
        init_args = model["init_args"]
        clip = init_args.get("clip", "")
        counts = summary.get("communication_per_client_and_round")
        return cls(
            folder=folder,
            method=model["class_path"].rpartition(".")[2],
            options={name: value for name, value in init_args.items() if name not in LINKED_OPTIONS},
            clip=clip.get("name", "") if isinstance(clip, Mapping) else clip,
            clip_fingerprint=model["clip_fingerprint"],
            optimizer=summary.get("optimizer"),
            training=_without_groups(summary["training"]),
            rounds=summary["rounds"],
            data=summary.get("data", {}),
            split=summary["split"],
            protocol=summary["protocol"],
            held_out=tuple(summary["held_out"]),
            accuracy=summary["accuracy"],
            communication={name: counts[name] for name in COSTS} if counts else {},
            seconds=summary.get("seconds", 0.0),
            versions=summary["versions"],
            metrics=summary.get("metrics", {}),
            tuning=summary.get("tuning", {}),
            balance=summary.get("balance", {}),
            configs=summary.get("configs", ()),
        )

    @property
    def seed(self) -> int:
        """The seed of training."""
        seed: int = self.training["seed"]
        return seed

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

    def _row(self, name: str) -> Mapping[str, float]:
        by_row = {row_of(title): row for title, row in self.accuracy.items()}
        # A method without rounds has only rows of baselines; zero-shot CLIP's row is its own.
        return by_row.get(name, self.baseline if by_row.keys() <= set(BASELINES.values()) else {})

    @property
    def is_centralised(self) -> bool:
        """Whether the images of all source domains were in one place."""
        return self.data.get("partition") == CENTRALISED

    @property
    def key(self) -> str:
        """A digest, equal for runs whose results may be compared: same images, protocol, clients, split rule and CLIP.

        Seeds and the names of held-out domains may differ, but not their number: more of them leave fewer to train on.
        """
        return digest([self.key_of_images, self.data.get("partition")])[:12]

    @property
    def key_of_images(self) -> str:
        """As ``key``, but also equal for runs that distribute the same images to other clients."""
        described = [self.data.get(name) for name in TABLE_KEYS if name != "partition"]
        # Without a description only the protocol's line and the split can say that images are the same.
        undescribed = None if self.data else (self.protocol, self.split)
        return digest([described, undescribed, self.clip, self.clip_fingerprint, len(self.held_out)])[:12]

    @property
    def settings(self) -> str:
        """A digest, equal for runs that differ only in seed, images and held-out domains: those of one table's row."""
        # What was searched differs between held-out domains, whose runs are one row all the same.
        if self.tuning:
            return digest([self.method, self.tuning["of"], self.tuning["search"], self.tuning["trials"], self.rounds])[
                :12
            ]
        how = (self.method, self.options, self.optimizer, self.training_without_seed, self.rounds)
        return digest([*how, self.is_centralised])[:12]

    @property
    def training_without_seed(self) -> dict[str, Any]:
        """How clients trained, except for the seed."""
        return {name: value for name, value in self.training.items() if name != "seed"}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """One row for each round, from ``metrics.csv``, without empty cells."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        import pandas as pd  # here, so that training begins without it

        # By way of strings, since pandas' own conversion may round the last digit.
        frame = pd.read_csv(path, dtype=str).astype(float).set_index("round", drop=False)
        return [row.dropna().to_dict() for _, row in frame.iterrows()]

    @cached_property
    def predictions(self) -> PredictionsByRow:
        """The predicted class of each test and held-out image; empty without the file, UserError if it is damaged."""
        return read_predictions(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's whole configuration; empty if it was made in Python. Raises as :func:`read_run_config`."""
        path = self.folder / "config.yaml"
        return read_run_config(path) if path.is_file() else {}


def row_of(title: str) -> str:
    """Strip the number of the round from a row's title, such as ``last round (15)``."""
    return title.partition(" (")[0]


def load_record(folder: str | Path) -> Record:
    """Read a finished run.

    Raises:
        UserError: if the folder is no run, the run has not ended, or its summary is damaged.
    """
    path = Path(folder) / "summary.json"
    if not path.is_file():
        state = "has not ended" if (Path(folder) / "config.yaml").is_file() else "is no run"
        raise UserError(f"{folder} {state}: there is no summary.json in it.")
    try:
        return Record.from_summary(Path(folder), read_json(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no summary of a run: {type(error).__name__} {error}. Make the run again, or remove it."
        ) from error


def sweep_name(run: Path) -> str:
    """Return the name of the folder of the sweep that made a run; empty if none did."""
    return next((parent.name for parent in run.absolute().parents if (parent / SWEEP_FILE).is_file()), "")


def find_records(paths: Sequence[str | Path], needs: Sequence[str] = ()) -> tuple[list[Record], list[str]]:
    """Find the finished runs at or below some paths.

    Of runs that are equal except for their folder, only the latest is returned. A run that was stopped is not reported
    where a later one beside it ended.

    Args:
        paths: run folders, or folders of runs at any depth.
        needs: which of ``history``, ``predictions`` and ``config`` must be readable; they are read later otherwise.

    Returns:
        The runs in the order of their paths, and a line for each path or run folder that could not be read.
    """
    records: dict[tuple[Any, ...], Record] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        folders = sorted({file.parent for file in path.rglob("*") if file.name in RUN_FILES})
        # What is below a run, such as the folder of a logger, is no run of its own.
        folders = [path] if path in folders else folders
        if not folders:
            problem = "no run is here or below" if path.is_dir() else "there is no such folder"
            problems.append(f"{path}: {problem}.")
        ended = [folder for folder in folders if (folder / "summary.json").is_file()]
        for folder in folders:
            try:
                record = load_record(folder)
                for name in needs:
                    getattr(record, name)
            except UserError as error:
                is_damaged = (folder / "summary.json").is_file()
                later = [other for other in ended if other.parent == folder.parent and other.name > folder.name]
                if is_damaged or not later:
                    problems.append(str(error))
                continue
            identity = (record.key, record.settings, record.seed, record.held_out, record.split)
            if identity not in records or records[identity].folder.name < record.folder.name:
                records[identity] = record
    return list(records.values()), problems


def load_runs(folder: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Read finished runs into a table with one row for each run, measured row and split.

    Columns:
        run: the run's folder.
        comparison: a digest, equal for runs whose results may be compared: same images, protocol, split and CLIP.
        settings: a digest, equal for runs that differ only in seed, images and held-out domains.
        method, data, protocol, clients, shots, clip: names; ``shots`` is "all" where every image trains.
        held_out: the run's held-out domains, joined by "+".
        seed, rounds: of training.
        row: "zero-shot CLIP", "class means", "last round" or "best on source validation".
        role, domain: the split, such as "held_out" and "sketch"; ``domain`` is empty for the mean over domains.
        accuracy, balanced_accuracy, macro_f1: in percent; ``calibration_error`` in points. NaN if not measured.
        largest_class: Accuracy of always predicting the largest class, in percent.
        worst_domain, worst_client: the lowest accuracy in percent, for a mean over domains.
        auroc, fpr_at_95: how well images of none of the classes are detected, in percent; NaN without such images.
        upload_parameters, download_parameters, upload_bytes, download_bytes: of one client and round.
        bytes, seconds: both ways, and of all rounds.

    Args:
        folder: a run's folder, a folder of runs at any depth, or several of these.

    Raises:
        UserError: if there is no finished run. A run that can't be read gives a warning, and is left out.
    """
    records, problems = find_records([folder] if isinstance(folder, (str, Path)) else folder)
    if not records:
        raise UserError(f"There is no finished run to load. {' '.join(problems)}")
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return runs_frame(records)


def runs_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return the table of ``load_runs`` for records that were read already."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for record in records:
        about = _about(record)
        for title, accuracies in record.accuracy.items():
            row = row_of(title)
            scores = record.metrics.get(row, {})
            for split, accuracy in accuracies.items():
                role, _, domain = split.partition("/")
                measured = {"row": row, "role": role, "domain": domain, "accuracy": accuracy}
                by_class = _beside_accuracy(record.balance.get(row, {}).get(split, {}))
                rows.append(about | measured | _beside_accuracy(scores.get(split, {})) | by_class)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _about(record: Record) -> dict[str, Any]:
    data = record.data
    counts = record.communication
    return {
        "run": str(record.folder),
        "comparison": record.key,
        "settings": record.settings,
        "method": record.method,
        "data": data.get("name", ""),
        "protocol": data.get("kind", record.protocol),
        "clients": data.get("partition", ""),
        "shots": "all" if data.get("shots") is None else str(data["shots"]),
        "clip": record.clip,
        "held_out": "+".join(record.held_out),
        "seed": record.seed,
        "rounds": record.rounds,
        **counts,
        "bytes": counts.get("upload_bytes", 0) + counts.get("download_bytes", 0),
        "seconds": record.seconds,
    }


def _without_groups(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a summary's groups (local, server, clients) by their own names, if they are set."""
    options: dict[str, Any] = {}
    for name, value in training.items():
        options |= value if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in options.items() if name != "class" and value not in (None, [])}


def _beside_accuracy(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return a split's or role's other scores from a summary."""
    measured: dict[str, float] = {name: scores[name] for name in SCORES if name in scores}
    measured |= {name: scores[name]["accuracy"] for name in WORST if name in scores}
    # A run has one folder of images out of distribution; they are by the folder's name.
    for detected in scores.get(OUT_OF_DISTRIBUTION, {}).values():
        measured |= {name: detected[name] for name in DETECTION}
    return measured
