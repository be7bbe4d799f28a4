"""A TensorBoard logger for run folders, and the callback that sends rounds and results to loggers."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger
from lightning.pytorch import loggers

from fedvlp.core.roles import BASELINES
from fedvlp.results.figures import FIGURE_FILE
from fedvlp.results.predictions import CONFUSION_FILE
from fedvlp.results.record import LAST_ROW, Record, load_record, runs_frame, sweep_name
from fedvlp.runs.descriptions import describe_data
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

IDS_FILE = "wandb.json"
"""File in the run folder with the run's id in each project of Weights & Biases."""
FILES = ("prompts.safetensors", "prompts_best.safetensors", "config.yaml", "summary.json", CONFUSION_FILE)
"""Files of an artifact, if the run has them."""

SHORT_ROWS = {title: name for name, title in BASELINES.items()} | {LAST_ROW: "last"}
MAX_TAG_LENGTH = 64  # limit of the service


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Lightning's TensorBoardLogger, writing to the run folder; needs pip install "fedvlp[tensorboard]".

    ``tensorboard --logdir runs`` shows all runs.

    Args:
        save_dir: Folder to write to; default: the run folder.
        name: Folder below ``save_dir``.
        version: Folder below ``name``; default: version_0, version_1 and so on, with a new one for each resumed run.
        prefix: Prefix of the names of all metrics.
    """

    def __init__(
        self, save_dir: str = "", name: str = "tensorboard", version: str | None = None, prefix: str = ""
    ) -> None:
        try:
            super().__init__(save_dir, name, version, default_hp_metric=False, prefix=prefix)
        except ModuleNotFoundError as error:
            raise UserError('TensorBoardLogger needs TensorBoard: pip install "fedvlp[tensorboard]".') from error

    def begin(self, folder: str) -> None:
        """Write to the run folder, which is unknown until the run starts, unless ``save_dir`` is set."""
        self._root_dir = self.save_dir or folder


class MetricsLoggers(FederationCallback):
    """Sender of each round to the loggers, at step = round. A logger that fails is disabled."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self.attributes: dict[str, Any] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Send the description of the run."""
        federation: RunView = trainer
        if not federation.loggers:
            return
        data = describe_data(federation.module, federation.data)["data"]
        self.attributes = run_attributes(federation.description, data)
        folder = Path(federation.log_dir)
        description = {**federation.description, **self.attributes, "run_folder": federation.log_dir}
        for logger in federation.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.begin(federation.log_dir)
        self._for_each_logger(federation, lambda logger: join_group(logger, self.attributes, folder))
        self._for_each_logger(federation, lambda logger: logger.log_hyperparams(description))
        self._for_each_logger(federation, lambda logger: save_id(logger, folder))

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Send the metrics of the round."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._for_each_logger(federation, lambda logger: logger.log_metrics(numbers, step=row["round"]))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Send the results of the run, and close the loggers."""
        federation: RunView = trainer
        folder = Path(federation.log_dir)
        self._for_each_logger(federation, lambda logger: send_results(logger, self.attributes, folder))
        self._for_each_logger(federation, lambda logger: logger.finalize("success"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the loggers, so that they write all received metrics."""
        if self.attributes:  # otherwise they were not started
            self._for_each_logger(trainer, lambda logger: logger.finalize("failed"))

    def _for_each_logger(self, federation: RunView, action: Callable[[Logger], Any]) -> None:
        """Call ``action`` with each logger that has not failed; its errors do not stop training."""
        if not federation.is_global_zero:
            return
        for index, logger in enumerate(federation.loggers):
            if index in self.failed:
                continue
            try:
                action(logger)
            except NotImplementedError:  # a logger without hyperparameters is still usable
                continue
            except Exception as error:  # no error of a logging service may stop the run
                self.failed.add(index)
                name = type(logger).__name__
                federation.fabric.print(f"{name} failed and is disabled: {type(error).__name__}: {error}", flush=True)


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
