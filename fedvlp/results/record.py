"""Finished runs, read from their folders: one record per run, and a pandas DataFrame of all runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedvlp.core.balance import TAIL, Balance
from fedvlp.core.predictions import TWO_CLASSES, name_accuracy
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
"""Titles of the rows in a summary; the last two are followed by the number of the round."""

TABLE_KEYS = (
    *("name", "images", "classes", "new_classes", "class_split", "targets", "kind", "partition", "shots"),
    *("split_rule", "validation_fraction", "test_fraction", "split_seed"),
)
"""Properties of data that must be equal to compare the results of runs."""

LINKED_OPTIONS = ("class_names", "clip", "domains", "num_clients", "rounds")
"""Options of a method that are derived from data, CLIP and trainer."""

COSTS = ("upload_parameters", "download_parameters", "upload_bytes", "download_bytes")
SCORES = (
    *("balanced_accuracy", "largest_class", "macro_f1", "micro_f1", "calibration_error"),
    *(*TAIL.values(), *TWO_CLASSES.values()),
)
WORST = ("worst_domain", "worst_client")
DETECTION = {"auroc": "AUROC", "fpr_at_95": "FPR at 95 %"}
"""Titles of the detection of out-of-distribution images, by the maximum probability and then by other scores."""
for _score in ("energy", "mcm", "gl_mcm"):
    DETECTION |= {f"{_score}_auroc": f"AUROC by {_score}", f"{_score}_fpr_at_95": f"FPR at 95 % by {_score}"}
ABOUT = ("run", "comparison", "settings", "method", "data", "protocol", "clients", "shots", "clip", "held_out")
MEASURED = ("row", "role", "domain", "accuracy", *SCORES, *WORST, *DETECTION)
COLUMNS = (*ABOUT, "seed", "rounds", *MEASURED, *COSTS, "bytes", "seconds")
"""The columns of ``load_runs``."""

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class Record:
    """The summary of a finished run.

    Attributes:
        options: Options of the method, without options derived from data, CLIP and trainer.
        clip_fingerprint: Digest of the frozen CLIP's weights.
        optimizer: Class and settings; None for a method without training.
        training: Options of training that were set, by name without the group, such as ``epochs``.
        data: Result of ``FederatedDataModule.describe``; empty if the run did not record it.
        split: Digest of the assignment of images to splits.
        protocol: Description of training data, clients and evaluation, in one line.
        accuracy: Accuracies in percent by row title, then by ``<role>/<domain>``, or by role for the mean.
        communication: Parameters and bytes, up and down, per client and round.
        versions: Versions of fedvlp, Python and packages that affect results.
        metrics: Other metrics by row, split and name; empty if the run did not record them.
        tuning: Choice of the options by ``fedvlp tune``; empty without tuning.
        balance: Scores by class, by row title without round; roles are missing if sites report no counts by class.
        configs: Names of the configs on the command line, such as ``methods/promptfl``; empty for a run from Python.
    """

    folder: Path
    method: str
    options: Mapping[str, Any]
    clip: str
    clip_fingerprint: str
    training: Mapping[str, Any]
    rounds: int
    split: str
    protocol: str
    held_out: tuple[str, ...]
    accuracy: Mapping[str, Mapping[str, float]]
    communication: Mapping[str, int]
    versions: Mapping[str, str]
    optimizer: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    balance: Mapping[str, Balance] = field(default_factory=dict)
    configs: Sequence[str] = ()

    @classmethod
    def from_summary(cls, folder: Path, summary: Mapping[str, Any]) -> Record:
        """Make a record from the content of ``summary.json``."""
        model = summary["model"]
        init_args = model["init_args"]
        clip = init_args.get("clip", "")
        counts = summary.get("communication_per_client_and_round")
        optional = ("optimizer", "data", "seconds", "metrics", "tuning", "balance", "configs")
        return cls(
            folder=folder,
            method=model["class_path"].rpartition(".")[2],
            options={name: value for name, value in init_args.items() if name not in LINKED_OPTIONS},
            clip=clip.get("name", "") if isinstance(clip, Mapping) else clip,
            clip_fingerprint=model["clip_fingerprint"],
            training=_drop_groups(summary["training"]),
            held_out=tuple(summary["held_out"]),
            communication={name: counts[name] for name in COSTS} if counts else {},
            **{name: summary[name] for name in ("rounds", "split", "protocol", "accuracy", "versions")},
            **{name: summary[name] for name in optional if name in summary},
        )

    @property
    def seed(self) -> int:
        """Seed of training."""
        return int(self.training["seed"])

    @property
    def select(self) -> str:
        """Metric on source validation that selected the best round, such as ``balanced_accuracy``."""
        return str(self.training.get("select", "accuracy"))

    @property
    def selection_score(self) -> float:
        """Mean of the metric ``select`` on source validation after the last round, in percent."""
        if self.select == "accuracy":
            return self.last["validation"]
        scores = self.balance.get(LAST_ROW) or self.balance[ZERO_SHOT_ROW]
        return float(scores["validation"][self.select])

    @property
    def last(self) -> Mapping[str, float]:
        """Accuracies in percent after the last round, or of the only row of a method without training."""
        return self._row(LAST_ROW)

    @property
    def best(self) -> Mapping[str, float]:
        """Accuracies in percent after the best round on source validation; equal to ``last`` without training."""
        return self._row(BEST_ROW)

    @property
    def baseline(self) -> Mapping[str, float]:
        """Accuracies in percent of zero-shot CLIP on the same images; empty if not evaluated."""
        return self.accuracy.get(ZERO_SHOT_ROW, {})

    def _row(self, name: str) -> Mapping[str, float]:
        by_row = {row_name(title): row for title, row in self.accuracy.items()}
        # A method without rounds has only baseline rows, and uses zero-shot CLIP's.
        return by_row.get(name, self.baseline if by_row.keys() <= set(BASELINES.values()) else {})

    @property
    def has_several_labels(self) -> bool:
        """Whether each image has several labels, so that accuracies are mean average precisions."""
        return "negative_class" in self.data

    def name_accuracy(self, text: str) -> str:
        """Name the score of the run in a text with the word "accuracy"."""
        return name_accuracy(text, self.has_several_labels)

    @property
    def is_centralised(self) -> bool:
        """Whether the images of all source domains were pooled."""
        return self.data.get("partition") == CENTRALISED

    @property
    def key(self) -> str:
        """Digest that is equal for comparable runs: same images, protocol, clients, split rule and CLIP.

        Seeds and names of held-out domains may differ, but not their number, which decides how many domains train.
        """
        return digest([self.images_key, self.data.get("partition")])[:12]

    @property
    def images_key(self) -> str:
        """Digest like ``key``, but also equal for runs that distribute the same images to other clients."""
        described = [self.data.get(name) for name in TABLE_KEYS if name != "partition"]
        described += [self.data["negative_class"]] if self.has_several_labels else []
        # Without a description of the data, only protocol and split can identify the images.
        undescribed = None if self.data else (self.protocol, self.split)
        return digest([described, undescribed, self.clip, self.clip_fingerprint, len(self.held_out)])[:12]

    @property
    def settings(self) -> str:
        """Digest that is equal for the runs of a table row, which differ only in seed, images and held-out domains."""
        options = [self.options, self.optimizer, self.training_without_seed, self.rounds, self.is_centralised]
        if self.tuning:  # tuned options may differ between held-out domains, but their runs still form one row
            options = [*(self.tuning[name] for name in ("of", "search", "trials")), self.rounds]
        return digest([self.method, *options])[:12]

    @property
    def training_without_seed(self) -> dict[str, Any]:
        """Options of training except for the seed."""
        return {name: value for name, value in self.training.items() if name != "seed"}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """Rows of ``metrics.csv``, one per round, without empty cells."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        import pandas as pd  # imported late, because training does not need it at the start

        # Read strings first, because pandas' own conversion may round the last digit.
        frame = pd.read_csv(path, dtype=str).astype(float).set_index("round", drop=False)
        return [row.dropna().to_dict() for _, row in frame.iterrows()]

    @cached_property
    def predictions(self) -> PredictionsByRow:
        """Predicted class of each test and held-out image; empty without a file. Raises UserError if it is damaged."""
        return read_predictions(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Complete configuration; empty for a run from Python. Raises the errors of :func:`read_run_config`."""
        path = self.folder / "config.yaml"
        return read_run_config(path) if path.is_file() else {}


def row_name(title: str) -> str:
    """Remove the number of the round from a row title such as ``last round (15)``."""
    return title.partition(" (")[0]


def load_record(folder: str | Path) -> Record:
    """Read a finished run.

    Raises:
        UserError: If the folder is not a run, the run has not ended, or its summary is damaged.
    """
    path = Path(folder) / "summary.json"
    if not path.is_file():
        state = "has not ended" if (Path(folder) / "config.yaml").is_file() else "is not a run"
        raise UserError(f"{folder} {state}: it has no summary.json.")
    try:
        return Record.from_summary(Path(folder), read_json(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not the summary of a run: {type(error).__name__} {error}. Repeat the run, or remove it."
        ) from error


def sweep_name(run: Path) -> str:
    """Find the folder name of the sweep that contains a run; empty if there is none."""
    return next((parent.name for parent in run.absolute().parents if (parent / SWEEP_FILE).is_file()), "")


def find_records(paths: Sequence[str | Path], needs: Sequence[str] = ()) -> tuple[list[Record], list[str]]:
    """Find finished runs at or below the paths.

    If runs are equal except for their folder, only the latest is returned. A stopped run is not reported as a problem
    if a later attempt in the same parent folder has finished.

    Args:
        paths: Run folders, or folders of runs at any depth.
        needs: Which of ``history``, ``predictions`` and ``config`` are read immediately, to report damaged files.

    Returns:
        The runs in the order of the paths, and one line for each path or run folder that could not be read.
    """
    records: dict[tuple[Any, ...], Record] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        # The files that a run writes at its end and at its start.
        folders = sorted({file.parent for file in path.rglob("*") if file.name in ("summary.json", "config.yaml")})
        # Folders inside a run, such as a logger's, are not runs.
        folders = [path] if path in folders else folders
        if not folders:
            problem = "it contains no run" if path.is_dir() else "there is no such folder"
            problems.append(f"{path}: {problem}.")
        finished = [folder for folder in folders if (folder / "summary.json").is_file()]
        for folder in folders:
            try:
                record = load_record(folder)
                for name in needs:
                    getattr(record, name)
            except UserError as error:
                is_damaged = (folder / "summary.json").is_file()
                later = [other for other in finished if other.parent == folder.parent and other.name > folder.name]
                if is_damaged or not later:
                    problems.append(str(error))
                continue
            identity = (record.key, record.settings, record.seed, record.held_out, record.split)
            if identity not in records or records[identity].folder.name < record.folder.name:
                records[identity] = record
    return list(records.values()), problems


def load_runs(folder: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Read finished runs into a table with one row per run, evaluated row and split.

    Average the held-out accuracy after the last round over seeds and held-out domains, for each method::

        table = load_runs("runs").query("row == 'last round' and role == 'held_out' and domain == ''")
        table.groupby("method")["accuracy"].mean()

    Columns:
        run: The run folder.
        comparison: Digest that is equal for comparable runs: same images, protocol, split and CLIP.
        settings: Digest that is equal for runs that differ only in seed, images and held-out domains.
        method, data, protocol, clients, shots, clip: Names; ``shots`` is "all" if all images train.
        held_out: Held-out domains, joined by "+".
        seed, rounds: Seed and number of rounds of training.
        row: "zero-shot CLIP", "class means", "last round" or "best on source validation".
        role, domain: The split, such as "held_out" and "sketch"; ``domain`` is empty for the mean over domains.
        accuracy, balanced_accuracy, macro_f1: In percent; ``calibration_error`` in points. NaN if not measured.
        micro_f1: In percent. If images have several labels, otherwise NaN; ``accuracy`` is then mean average precision.
        largest_class: Accuracy of always predicting the largest class, in percent.
        class_auroc, average_precision, sensitivity, specificity: In percent; NaN unless there are two classes.
        head_accuracy, medium_accuracy, tail_accuracy: Of thirds of the classes, by training images, with a LongTail.
        worst_domain, worst_client: Lowest accuracy in percent, for means over domains.
        auroc, fpr_at_95: Detection of out-of-distribution images in percent, by the maximum probability.
        energy_auroc, energy_fpr_at_95: The same by another score; also for ``mcm`` and ``gl_mcm``.
        upload_parameters, download_parameters, upload_bytes, download_bytes: Per client and round.
        bytes, seconds: Bytes up and down per client and round; duration of all rounds.

    Args:
        folder: A run folder, a folder of runs at any depth, or several of these.

    Raises:
        UserError: If there is no finished run. Unreadable runs cause a warning and are skipped.
    """
    records, problems = find_records([folder] if isinstance(folder, (str, Path)) else folder)
    if not records:
        raise UserError(f"There is no finished run to load. {' '.join(problems)}")
    for problem in problems:
        warnings.warn(f"skipped: {problem}", stacklevel=2)
    return runs_frame(records)


def runs_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Make the table of ``load_runs`` from records."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for record in records:
        about = _about(record)
        for title, accuracies in record.accuracy.items():
            row = row_name(title)
            scores = record.metrics.get(row, {})
            for split, accuracy in accuracies.items():
                role, _, domain = split.partition("/")
                measured = {"row": row, "role": role, "domain": domain, "accuracy": accuracy}
                by_class = _other_metrics(record.balance.get(row, {}).get(split, {}))
                tail = _tail_accuracies(scores, split, record.data.get("training_images", {}))
                rows.append(about | measured | _other_metrics(scores.get(split, {})) | by_class | tail)
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


def _drop_groups(training: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the options that are set in a summary's groups (local, server, clients)."""
    options: dict[str, Any] = {}
    for name, value in training.items():
        options |= value if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in options.items() if name != "class" and value not in (None, [])}


def _tail_accuracies(scores: Mapping[str, Any], split: str, images: Mapping[str, int]) -> dict[str, float]:
    """Average the accuracies of head, medium and tail classes in a split, or over the splits of a role."""
    names = sorted(images, key=lambda name: -images[name])
    splits = [each for name, each in scores.items() if name == split or name.startswith(f"{split}/")]
    measured: dict[str, float] = {}
    for third, title in enumerate(TAIL.values()):
        chosen = names[len(names) * third // 3 : len(names) * (third + 1) // 3]
        means = []
        for by_class in (each["class_accuracy"] for each in splits if "class_accuracy" in each):
            accuracies = [by_class[name] for name in chosen if name in by_class]
            means += [fmean(accuracies)] if accuracies else []
        measured |= {title: fmean(means)} if means else {}
    return measured


def _other_metrics(scores: Mapping[str, Any]) -> dict[str, float]:
    measured: dict[str, float] = {name: scores[name] for name in SCORES if name in scores}
    measured |= {name: scores[name]["accuracy"] for name in WORST if name in scores}
    # The key is the name of the folder of out-of-distribution images; a run has at most one.
    for detected in scores.get(OUT_OF_DISTRIBUTION, {}).values():
        measured |= {name: detected[name] for name in DETECTION if name in detected}
    return measured
