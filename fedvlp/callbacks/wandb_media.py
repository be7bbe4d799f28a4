"""What Weights & Biases shows of a run that ended beside its numbers: files, tables, confusions and pictures."""

from __future__ import annotations

from typing import Any

from fedvlp.results import Record
from fedvlp.results.confusion import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.results.saved_pictures import saved_pictures

FILES = ("prompts.safetensors", "prompts_best.safetensors", "config.yaml", "summary.json")
"""What an artifact holds, as far as the run has it."""

SHORT_ROWS = {ZERO_SHOT_ROW: "zero_shot", LAST_ROW: "last"}
CONFUSION_CHART = "wandb/confusion_matrix/v1"


def send_media(run: Any, record: Record) -> None:
    """Sends the prompts and config as an artifact, accuracies by domain and class, confusions, and pictures of the run.

    Args:
        run: of Weights & Biases, not finished.
        record: the run that ended.
    """
    # Installed where there is such a run, and slow to import.
    import wandb

    tables = {"domains": _domains(wandb, record), "classes": _classes(wandb, record)}
    run.log({**tables, **_confusions(wandb, record), **_pictures(wandb, record)})
    artifact = wandb.Artifact(f"{record.method}-{run.id}", type="prompts", description=record.protocol)
    for name in FILES:
        path = record.folder / name
        if path.is_file():
            artifact.add_file(str(path), name=name)
    run.log_artifact(artifact)


def _domains(wandb: Any, record: Record) -> Any:
    """Returns a table of each domain's accuracy, by row."""
    table = wandb.Table(columns=["row", "role", "domain", "accuracy"])
    for row, accuracies in record.accuracy.items():
        for name, value in accuracies.items():
            role, _, domain = name.partition("/")
            if domain:
                table.add_data(row, role, domain, value)
    return table


def _classes(wandb: Any, record: Record) -> Any:
    """Returns a table of each class's accuracy, by row and split."""
    table = wandb.Table(columns=["row", "split", "class", "accuracy"])
    for row, by_split in record.metrics.items():
        for split, scores in by_split.items():
            for name, value in scores.get("class_accuracy", {}).items():
                table.add_data(row, split, name, value)
    return table


def _confusions(wandb: Any, record: Record) -> dict[str, Any]:
    """Returns a matrix of true and predicted classes for each row and split; only pairs that have images."""
    names = [str(name) for name in record.data.get("classes", [])]
    charts = {}
    for row, by_split in record.confusions.items():
        for split, confusion in by_split.items():
            table = wandb.Table(columns=["actual", "predicted", "images"])
            for (true, predicted), images in sorted(confusion.items()):
                table.add_data(names[true], names[predicted], images)
            fields = {"Actual": "actual", "Predicted": "predicted", "nPredictions": "images"}
            title = {"title": f"{row}: {split}"}
            charts[f"confusion/{SHORT_ROWS[row]}/{split}"] = wandb.plot_table(CONFUSION_CHART, table, fields, title)
    return charts


def _pictures(wandb: Any, record: Record) -> dict[str, Any]:
    """Returns the pictures that lie in the run's folder, as when a run goes on that was explained before."""
    pictures, _ = saved_pictures(record)
    return {f"explanations/{one.path.stem}": wandb.Image(str(one.path), caption=one.caption) for one in pictures}
