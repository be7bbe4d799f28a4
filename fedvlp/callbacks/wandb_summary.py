"""What Weights & Biases needs to group the runs of a sweep and to make their table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvlp.results import load_record

TAG_LENGTH = 64  # the service refuses longer tags


def facts(description: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
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


def join_group(logger: Any, about: Mapping[str, Any]) -> None:
    """Puts a logger's run, which has not begun, into the group of its method and data; what the user chose stays.

    Args:
        logger: any; only Lightning's WandbLogger has groups.
        about: what ``facts`` returns.
    """
    options = getattr(logger, "_wandb_init", None)
    if options is None:
        return
    method, data, held_out, seed = (str(about[name]) for name in ("method", "data", "held_out", "seed"))
    chosen = {
        "name": f"{method}, {data}, held out {held_out}, seed {seed}",
        "group": f"{method}, {data}",
        "job_type": f"held out {held_out}",
        "tags": [tag[:TAG_LENGTH] for tag in (method, data, f"held out {held_out}", f"seed {seed}")],
    }
    for name, value in chosen.items():
        if options.get(name) is None:
            options[name] = value


def send_summary(logger: Any, about: Mapping[str, Any], folder: Path) -> None:
    """Sends all that a table of runs needs, so that it can be made there; a run without ``ended`` was stopped.

    Args:
        logger: any; only Lightning's WandbLogger has summaries.
        about: what ``facts`` returns.
        folder: the run's, which has ended.
    """
    if not hasattr(logger, "_wandb_init"):
        return
    record = load_record(folder)
    rows = {"last": record.last, "best": record.best, "zero_shot": record.baseline}
    accuracies = {f"{title}/{name}": value for title, row in rows.items() for name, value in row.items()}
    communication = {f"communication/{name}": value for name, value in record.communication.items()}
    whole = {"protocol": record.protocol, "split": record.split, "rounds": record.rounds, "seconds": record.seconds}
    logger.experiment.summary.update({**about, **accuracies, **communication, **whole, "ended": True})
