"""What Weights & Biases needs to group the runs of a sweep and to make their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlp.callbacks.wandb_media import SHORT_ROWS, send_media
from fedvlp.results import Record, load_record
from fedvlp.results.sweep_folder import group_name

MAX_TAG_LENGTH = 64  # the service refuses longer tags


def run_attributes(description: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what runs are grouped by, each under one short name.

    Args:
        description: the federation's, of the run.
        data: the data module's, of the images.
    """
    model = description["model"]
    clip = model["init_args"].get("clip")
    return {
        "method": model["class_path"].rpartition(".")[2],
        "backbone": clip.get("name") if isinstance(clip, Mapping) else clip,
        "data": data["name"],
        "images": data["images"],
        "held_out": "+".join(data["held_out"]) or "none",
        "seed": description["training"]["seed"],
        "kind": data["kind"],
        "partition": data["partition"],
        "shots": data["shots"],
    }


def join_group(logger: Any, attributes: Mapping[str, Any], folder: Path) -> None:
    """Puts a logger's run, which has not begun, into the group of its sweep, or else of its method and data.

    What the user chose stays.

    Args:
        logger: any; only Lightning's WandbLogger has groups.
        attributes: what ``run_attributes`` returns.
        folder: the run's.
    """
    # Lightning has no public way to set a group once the logger is made.
    options = getattr(logger, "_wandb_init", None)
    if options is None:
        return
    method_and_data = f"{attributes['method']}, {attributes['data']}"
    held_out = f"held out {attributes['held_out']}"
    seed = f"seed {attributes['seed']}"
    tags = [str(attributes["method"]), str(attributes["data"]), held_out, seed]
    defaults = {
        "name": f"{method_and_data}, {held_out}, {seed}",
        "group": group_name(folder, attributes["method"], attributes["data"]),
        "job_type": attributes["method"],
        "tags": [tag[:MAX_TAG_LENGTH] for tag in tags],
    }
    for name, value in defaults.items():
        if options.get(name) is None:
            options[name] = value


def send_summary(logger: Any, attributes: Mapping[str, Any], folder: Path) -> None:
    """Sends all that a table of runs needs, and what is shown of a run; a run without ``ended`` was stopped.

    Args:
        logger: any; only Lightning's WandbLogger has summaries.
        attributes: what ``run_attributes`` returns.
        folder: the run's, which has ended.
    """
    if hasattr(logger, "_wandb_init"):
        record = load_record(folder)
        logger.experiment.summary.update({**attributes, **_results(record), "ended": True})
        send_media(logger.experiment, record)


def _results(record: Record) -> dict[str, Any]:
    """Returns accuracies as ``<row>/<role>/<domain>``, communication, and what says which run it was."""
    found: dict[str, Any] = {}
    for title, row in {"last": record.last, "best": record.best, "zero_shot": record.baseline}.items():
        found |= {f"{title}/{name}": value for name, value in row.items()}
    for row_title, by_split in record.metrics.items():
        found |= dict(_flat(by_split, f"{SHORT_ROWS[row_title]}/"))
    found |= {f"communication/{name}": value for name, value in record.communication.items()}
    return found | {
        "protocol": record.protocol,
        "split": record.split,
        "rounds": record.rounds,
        "seconds": record.seconds,
    }


def _flat(scores: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yields all numbers and names among the scores of a split or role, but those of each class, which are a table."""
    for name, value in scores.items():
        if isinstance(value, list):
            yield from zip((f"{start}{name}/low", f"{start}{name}/high"), value, strict=True)
        elif not isinstance(value, Mapping):
            yield f"{start}{name}", value
        elif name != "class_accuracy":
            yield from _flat(value, f"{start}{name}/")
