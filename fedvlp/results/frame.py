"""Finished runs as one pandas DataFrame, from which all tables are made."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.results.record import BEST_ROW, COSTS, LAST_ROW, ZERO_SHOT_ROW, Record, find_records
from fedvlp.utils.errors import UserError

SCORES = ("balanced_accuracy", "macro_f1", "calibration_error")
WORST = ("worst_domain", "worst_client")
DETECTION = ("auroc", "fpr_at_95")
COLUMNS = (
    "run",
    "comparison",
    "settings",
    "method",
    "data",
    "protocol",
    "clients",
    "shots",
    "clip",
    "held_out",
    "seed",
    "rounds",
    "row",
    "role",
    "domain",
    "accuracy",
    *SCORES,
    *WORST,
    *DETECTION,
    *COSTS,
    "bytes",
    "seconds",
)


def load_runs(folder: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Reads finished runs into a table with one row for each run, measured row and split.

    Columns:
        run: the run's folder.
        comparison: a digest, equal for runs whose results may be compared: same images, protocol, split and CLIP.
        settings: a digest, equal for runs that differ only in seed, images and held-out domains.
        method, data, protocol, clients, shots, clip: names; ``shots`` is "all" where every image trains.
        held_out: the run's held-out domains, joined by "+".
        seed, rounds: of training.
        row: "zero-shot CLIP", "last round" or "best on source validation".
        role, domain: the split, such as "held_out" and "sketch"; ``domain`` is empty for the mean over domains.
        accuracy, balanced_accuracy, macro_f1: in percent; ``calibration_error`` in points. NaN if not measured.
        worst_domain, worst_client: the lowest accuracy in percent, for a mean over domains.
        auroc, fpr_at_95: how well images of none of the classes are detected, in percent; NaN without such images.
        upload_parameters, download_parameters, upload_bytes, download_bytes: of one client and round.
        bytes: both ways.
        seconds: of all rounds.

    Args:
        folder: a run's folder, a folder of runs at any depth, or several of these.

    Raises:
        UserError: if there is no finished run. A run that can't be read gives a warning, and is left out.

    Example, mean accuracy of each method on each held-out domain:

        runs = fedvlp.load_runs("runs/first")
        last = runs[(runs["row"] == "last round") & (runs["role"] == "held_out") & (runs["domain"] != "")]
        last.pivot_table(index="method", columns="domain", values="accuracy")
    """
    records, problems = find_records([folder] if isinstance(folder, (str, Path)) else folder)
    if not records:
        raise UserError(f"There is no finished run to load. {' '.join(problems)}")
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return runs_frame(records)


def runs_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Returns the table of ``load_runs`` for records that were read already."""
    rows: list[dict[str, Any]] = []
    for record in records:
        rows += _rows(record)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(record: Record) -> list[dict[str, Any]]:
    data = record.data
    sent = record.communication
    about = {
        "run": str(record.folder),
        "comparison": _digest(record.key, len(record.held_out)),
        "settings": _digest(record.settings),
        "method": record.method,
        "data": data.get("name", ""),
        "protocol": data.get("kind", record.protocol),
        "clients": data.get("partition", ""),
        "shots": "all" if data.get("shots") is None else str(data["shots"]),
        "clip": record.clip,
        "held_out": "+".join(record.held_out),
        "seed": record.seed,
        "rounds": record.rounds,
        **sent,
        "bytes": sent.get("upload_bytes", 0) + sent.get("download_bytes", 0),
        "seconds": record.seconds,
    }
    rows: list[dict[str, Any]] = []
    for title, accuracies in record.accuracy.items():
        # Titles end in the number of their round, which differs between runs of one table.
        row = next((name for name in (ZERO_SHOT_ROW, LAST_ROW, BEST_ROW) if title.startswith(name)), title)
        for split, accuracy in accuracies.items():
            role, _, domain = split.partition("/")
            measured = _beside_accuracy(record.metrics.get(row, {}).get(split, {}))
            rows.append({**about, "row": row, "role": role, "domain": domain, "accuracy": accuracy, **measured})
    return rows


def _beside_accuracy(scores: Mapping[str, Any]) -> dict[str, float]:
    """Returns what a summary has of a split or role beside its accuracy."""
    measured = {name: scores[name] for name in SCORES if name in scores}
    measured |= {name: scores[name]["accuracy"] for name in WORST if name in scores}
    # A run has one folder of images out of distribution; they are by the folder's name.
    for detected in scores.get(OUT_OF_DISTRIBUTION, {}).values():
        measured |= {name: detected[name] for name in DETECTION}
    return measured


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
