"""The table at the end, and ``summary.json``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedvlp.callbacks.baseline import Baseline
from fedvlp.results.accuracy_table import accuracy_table, format_accuracies
from fedvlp.results.selection import is_accuracy
from fedvlp.training.callback import FederationCallback
from fedvlp.utils.files import write_json
from fedvlp.version import __version__

NOTES = {
    "test": "+ test split: nobody trains on it, and it never chooses a round",
    "held_out": "* held out: no client has it, and it never chooses a round",
}
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
        shown = [f"{client.name}: {client.num_examples} images" for client in data.clients[:12]]
        shown += ["..."] if len(data.clients) > len(shown) else []
        trainer.fabric.print(
            f"{type(pl_module).__name__} on {len(data.clients)} clients ({', '.join(shown)}), "
            f"{len(data.class_names)} classes, split {data.split_hash}, {trainer.fabric.device}\n{data.protocol}",
            flush=True,
        )
        if trainer.is_global_zero and hasattr(data, "split_table"):
            write_json(trainer.folder / "splits.json", {"hash": data.split_hash, "splits": data.split_table()})

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Prints the table and writes the file."""
        if not trainer.is_global_zero:
            return
        history = trainer.run_state.history
        rows = accuracy_table(self.baseline.scores, history)
        trainer.fabric.print(f"\n{trainer.data.protocol}\n{format_accuracies(rows)}")
        roles = {name.split("/")[0] for _, row in rows for name in row}
        for role, note in NOTES.items():
            if role in roles:
                trainer.fabric.print(note)
        trainer.fabric.print("")
        if history:
            row = history[-1]
            trainer.fabric.print(
                f"each client and round: {row['upload_parameters']:,} parameters ({row['upload_bytes']:,} bytes) up, "
                f"{row['download_parameters']:,} parameters ({row['download_bytes']:,} bytes) down; "
                f"{sum(row['seconds'] for row in history):.1f} s for {len(history)} rounds"
            )
        if (features := _features(trainer.data)) and features["saved_seconds"]:
            images, seconds = features["cached_images"], features["saved_seconds"]
            trainer.fabric.print(f"features of {images:,} images came from the cache, which saved {seconds:.1f} s")
        trainer.fabric.print(f"run folder: {trainer.folder}")
        write_json(trainer.folder / "summary.json", self._summary(trainer, rows))

    @staticmethod
    def _summary(federation: Any, rows: Any) -> dict[str, Any]:
        """Returns all of the table, and what is needed to trust it."""
        history = federation.run_state.history
        last = history[-1] if history else {}
        costs = ("upload_parameters", "upload_bytes", "download_parameters", "download_bytes")
        return {
            **federation.description,
            "data": federation.data.describe(),
            "held_out": federation.data.held_out_domains,
            "clients": {client.name: client.num_examples for client in federation.data.clients},
            "rounds": federation.run_state.server.round,
            "accuracy": {title: {k: v for k, v in row.items() if is_accuracy(k)} for title, row in rows},
            "communication_per_client_and_round": {name: last.get(name, 0) for name in costs},
            "seconds": sum(row["seconds"] for row in history),
            "features": _features(federation.data),
            "versions": {"fedvlp": __version__, "python": platform.python_version(), **_versions()},
        }


def _features(data: Any) -> dict[str, float]:
    """Returns what computing features took and what the cache saved; nothing of data that keep none."""
    binding = getattr(data, "binding", None)
    return {} if binding is None else dict(binding.feature_counts())


def _versions() -> dict[str, str]:
    """Returns the versions of the packages that numbers depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
