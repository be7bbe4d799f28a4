"""Data for Weights & Biases: name, group and id at the start of a run, tables and files at its end."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlp.core.roles import BASELINES
from fedvlp.results.figures import FIGURE_FILE
from fedvlp.results.predictions import CONFUSION_FILE
from fedvlp.results.record import LAST_ROW, Record, load_record, runs_frame, sweep_name
from fedvlp.utils.files import write_json

IDS_FILE = "wandb.json"
"""File in the run folder with the run's id in each project of Weights & Biases."""
FILES = ("prompts.safetensors", "prompts_best.safetensors", "config.yaml", "summary.json", CONFUSION_FILE)
"""Files of an artifact, if the run has them."""

SHORT_ROWS = {title: name for name, title in BASELINES.items()} | {LAST_ROW: "last"}
MAX_TAG_LENGTH = 64  # limit of the service


def run_attributes(description: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Collect values for grouping runs, under short names."""
    model = description["model"]
    clip = model["init_args"].get("clip")
    return {
        "method": model["class_path"].rpartition(".")[2],
        "backbone": clip.get("name") if isinstance(clip, Mapping) else clip,
        "data": data["name"],
        "images": data["images"],
        "held_out_domains": "+".join(data["held_out"]) or "none",
        "seed": description["training"]["seed"],
        "kind": data["kind"],
        "partition": data["partition"],
        "shots": data["shots"],
    }


def join_group(logger: Any, attributes: Mapping[str, Any], folder: Path) -> None:
    """Set name, group and id of a WandbLogger's run before it starts, and the name of an MLFlowLogger's run.

    The group is the sweep, or otherwise method and data. The id is set if the run resumes. The user's options are not
    changed.
    """
    method, data = str(attributes["method"]), str(attributes["data"])
    tags = [method, data, f"held out {attributes['held_out_domains']}", f"seed {attributes['seed']}"]
    # Lightning has no public way to set these on an existing logger.
    if hasattr(logger, "_mlflow_client"):
        logger._run_name = logger._run_name or ", ".join(tags)
    options = getattr(logger, "_wandb_init", None)
    if options is None:
        return
    # Defaults that help to find a run, so that users do not have to set them in each config.
    defaults = {
        "id": _known_ids(folder).get(options.get("project")),
        "name": ", ".join(tags),
        "group": sweep_name(folder) or f"{method}, {data}",
        "job_type": method,
        "tags": [tag[:MAX_TAG_LENGTH] for tag in tags],
    }
    for name, value in defaults.items():
        if options.get(name) is None:
            options[name] = value


def save_id(logger: Any, folder: Path) -> None:
    """Store the id of a WandbLogger's run, so that a resumed run continues it."""
    if hasattr(logger, "_wandb_init"):
        write_json(folder / IDS_FILE, _known_ids(folder) | {logger._wandb_init["project"]: logger.experiment.id})


def _known_ids(folder: Path) -> dict[str, str]:
    path = folder / IDS_FILE
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def send_results(logger: Any, attributes: Mapping[str, Any], folder: Path) -> None:
    """Send the results of a finished run to a WandbLogger; summaries of stopped runs lack ``ended``."""
    if hasattr(logger, "_wandb_init"):
        record = load_record(folder)
        logger.experiment.summary.update({**attributes, **_summary(record), "ended": True})
        _send_media(logger.experiment, record)


def _summary(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = {}
    baselines = {name: record.accuracy.get(title, {}) for name, title in BASELINES.items()}
    for title, row in {"last": record.last, "best": record.best, **baselines}.items():
        values |= {f"{title}/{name}": value for name, value in row.items()}
    for title, by_split in record.metrics.items():
        values |= dict(_flatten(by_split, f"{SHORT_ROWS[title]}/"))
    values |= {f"communication/{name}": value for name, value in record.communication.items()}
    about = {"protocol": record.protocol, "split": record.split, "rounds": record.rounds}
    return values | about | {"total_seconds": record.seconds}  # each round has its own seconds


def _flatten(scores: Mapping[str, Any], start: str) -> Iterator[tuple[str, Any]]:
    """Yield all numbers and names among the scores of a split or role, except for scores of classes."""
    for name, value in scores.items():
        # The only lists are intervals, which become two columns of the project's table.
        if isinstance(value, list):
            yield from zip((f"{start}{name}/low", f"{start}{name}/high"), value, strict=True)
        elif not isinstance(value, Mapping):
            yield f"{start}{name}", value
        elif name != "class_accuracy":
            yield from _flatten(value, f"{start}{name}/")


def _send_media(run: Any, record: Record) -> None:
    # Imported late: it is installed if there is such a run, and slow to import.
    import wandb

    frame = runs_frame([record])[["row", "role", "domain", "accuracy"]].rename(columns=record.name_accuracy)
    domains = wandb.Table(dataframe=frame[frame["domain"] != ""])
    score = "average precision" if record.has_several_labels else "accuracy"
    classes = wandb.Table(columns=["row", "split", "class", score])
    for title, by_split in record.metrics.items():
        for split, scores in by_split.items():
            for name, value in scores.get("class_accuracy", {}).items():
                classes.add_data(title, split, name, value)
    figure = record.folder / FIGURE_FILE
    pictures = {"accuracy_over_rounds": wandb.Image(str(figure))} if figure.is_file() else {}
    run.log({"domains": domains, "classes": classes, **pictures})
    artifact = wandb.Artifact(f"{record.method}-{run.id}", type="prompts", description=record.protocol)
    for path in filter(Path.is_file, [record.folder / name for name in FILES]):
        artifact.add_file(str(path), name=path.name)
    run.log_artifact(artifact)
