"""The table at the end, and ``summary.json``."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.callbacks.hooks import FederationCallback
from fedvlp.report.table import accuracy_table, format_accuracies
from fedvlp.version import __version__

PACKAGES = ("torch", "lightning", "open_clip_torch", "numpy", "torchvision")


class Summary(FederationCallback):
    """Prints each domain's accuracy beside zero-shot CLIP, and writes all of it with versions, seed and split.

    Args:
        baseline: where the untrained baseline's accuracies are.
    """

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Says what will run, and writes down the split."""
        data = trainer.data
        held_out = ", ".join(data.held_out_domains) or "no domain"
        trainer.fabric.print(
            f"{type(pl_module).__name__} on {len(data.clients)} clients "
            f"({', '.join(f'{client.name}: {client.num_examples} images' for client in data.clients[:12])}), "
            f"{len(data.class_names)} classes, {held_out} held out, split {data.split_hash}, {trainer.fabric.device}",
            flush=True,
        )
        if trainer.is_global_zero and hasattr(data, "split_table"):
            write_json(trainer.folder / "splits.json", {"hash": data.split_hash, "splits": data.split_table()})

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Prints the table and writes the file."""
        if not trainer.is_global_zero:
            return
        history = trainer.progress.history
        rows = accuracy_table(self.baseline.scores, history)
        trainer.fabric.print("\n" + format_accuracies(rows))
        trainer.fabric.print("* held out: no client has it, and it never chooses a round\n")
        if history:
            row = history[-1]
            trainer.fabric.print(
                f"each client and round: {row['upload_parameters']:,} parameters ({row['upload_bytes']:,} bytes) up, "
                f"{row['download_parameters']:,} parameters ({row['download_bytes']:,} bytes) down; "
                f"{sum(row['seconds'] for row in history):.1f} s for {len(history)} rounds"
            )
        trainer.fabric.print(f"run folder: {trainer.folder}")
        write_json(trainer.folder / "summary.json", self._summary(trainer, rows))

    @staticmethod
    def _summary(federation: Any, rows: Any) -> dict[str, Any]:
        """Returns all of the table, and what is needed to trust it."""
        history = federation.progress.history
        last = history[-1] if history else {}
        costs = ("upload_parameters", "upload_bytes", "download_parameters", "download_bytes")
        return {
            **federation.description,
            "protocol": "held-out" if federation.data.held_out_domains else "all domains seen",
            "held_out": federation.data.held_out_domains,
            "clients": {client.name: client.num_examples for client in federation.data.clients},
            "rounds": federation.progress.server.round,
            "accuracy": {title: {k: v for k, v in row.items() if _is_accuracy(k)} for title, row in rows},
            "communication_per_client_and_round": {name: last.get(name, 0) for name in costs},
            "seconds": sum(row["seconds"] for row in history),
            "versions": {"fedvlp": __version__, "python": platform.python_version(), **_versions()},
        }


def write_json(path: Path, value: Any) -> None:
    """Writes JSON in one step that can't be seen half done."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _is_accuracy(name: str) -> bool:
    """Whether a metric is an accuracy on a split."""
    return name.split("/")[0] in ("validation", "held_out")


def _versions() -> dict[str, str]:
    """Returns the versions of the packages that numbers depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
