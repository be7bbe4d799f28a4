"""Runs of Weights & Biases are grouped, contain all results, and never stop training."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger

from fedvlp.callbacks.loggers import join_group
from fedvlp.results import Record, load_record


class Config(dict[str, Any]):
    """Configuration of a fake run, with one more argument than a dictionary."""

    def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:
        super().update(values)


def fake_run(**options: Any) -> SimpleNamespace:
    """Create a fake run of Weights & Biases that stores all calls."""
    run = SimpleNamespace(options=options, config=Config(), summary={}, logged=[], artifacts=[], id="x1y2")
    run.log = lambda metrics, **_: run.logged.append(dict(metrics))
    run.log_artifact = run.artifacts.append
    return run


@pytest.fixture
def started_runs(monkeypatch, tmp_path) -> list[SimpleNamespace]:
    """Collect the runs that start, without the service."""
    for name in ("WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    runs: list[SimpleNamespace] = []
    monkeypatch.setattr(wandb, "init", lambda **options: runs.append(fake_run(**options)) or runs[-1])
    return runs


def train(build, logger: WandbLogger, *arguments: str) -> Path:
    """Train one round with a logger and return the run folder."""
    parts = build("promptfl", "--trainer.rounds=1", *arguments)
    parts.trainer.fabric._loggers = [logger]
    parts.trainer.fit(parts.model, parts.datamodule)
    return parts.trainer.folder


def test_a_run_joins_its_group_and_ends_with_the_table(build, started_runs):
    folder = train(build, WandbLogger(project="p"), "--data.shots=2", "--seed_everything=7")
    (run,) = started_runs
    assert run.options["group"] == "PromptFL, " + run.config["data"]
    assert run.options["job_type"] == "PromptFL"
    assert run.options["tags"][-1] == "seed 7"
    expected = {"method": "PromptFL", "held_out_domains": "photo", "seed": 7, "shots": 2, "backbone": "fedvlp-tiny"}
    assert {name: run.config[name] for name in expected} == expected
    record = load_record(folder)
    summary = json.loads(json.dumps(run.summary))
    assert {name: summary[name] for name in expected} == expected
    assert summary["last/held_out/photo"] == record.last["held_out/photo"]
    assert summary["best/validation"] == record.best["validation"]
    assert summary["zero_shot/held_out"] == record.baseline["held_out"]
    assert summary["class_means/held_out"] == record.accuracy["class means"]["held_out"]
    measured = record.metrics["last round"]["held_out"]
    assert summary["last/held_out/balanced_accuracy"] == measured["balanced_accuracy"]
    assert summary["last/held_out/intervals/accuracy/high"] == measured["intervals"]["accuracy"][1]
    assert summary["last/held_out/worst_domain/name"] == "photo"
    assert not [name for name in summary if "class_accuracy" in name]
    assert summary["communication/upload_parameters"] == record.communication["upload_parameters"] > 0
    assert (summary["split"], summary["protocol"]) == (record.split, record.protocol)
    assert summary["kind"] == "leave-domains-out"
    assert summary["ended"]
    assert summary["total_seconds"] == record.seconds
    # In the summary, metrics of rounds keep the value of the last round.
    each_round = set(run.logged[0])
    assert {"held_out", "seconds"} <= each_round
    assert not each_round & (summary.keys() | run.config.keys())
    check_media(run, record)


def check_media(run: SimpleNamespace, record: Record) -> None:
    """Check the tables of domains and classes, and the artifact of a run."""
    media = {name: value for logged in run.logged for name, value in logged.items()}
    assert media["accuracy_over_rounds"].format == "png"
    rows = media["domains"].data
    assert ["zero-shot CLIP", "held_out", "photo", record.baseline["held_out/photo"]] in rows
    assert len(rows) == 4 * (len(record.last) - 2)  # without the means of the two roles
    class_accuracies = record.metrics["last round"]["held_out/photo"]["class_accuracy"]
    expected = [["last round", "held_out/photo", name, value] for name, value in class_accuracies.items()]
    assert [row for row in media["classes"].data if row[0] == "last round"] == expected
    (artifact,) = run.artifacts
    assert artifact.name == "PromptFL-x1y2"
    prompts = {"prompts.safetensors", "prompts_best.safetensors"}
    assert set(artifact.manifest.entries) == prompts | {"summary.json", "confusion.csv"}


def test_a_resumed_run_continues_the_same_run(build, started_runs):
    folder = train(build, WandbLogger(project="p"), "--trainer.baselines=[]")
    parts = build("promptfl", "--trainer.rounds=2", "--trainer.baselines=[]")
    parts.trainer.fabric._loggers = [WandbLogger(project="p"), WandbLogger(project="other")]
    parts.trainer.fit(parts.model, parts.datamodule, ckpt_path=str(folder))
    assert [run.options["id"] for run in started_runs] == [None, "x1y2", None]
    assert started_runs[1].options["resume"] == "allow"


def test_names_and_groups_follow_the_sweep_unless_the_user_chose_them(tmp_path):
    attributes = {"method": "PLAN", "data": "PACS", "held_out_domains": "ink", "seed": 3}
    folder = tmp_path / "first" / "plan-12ab" / "ink-3" / "2026-01-31_12-00-00"
    folder.mkdir(parents=True)

    def joined(**options):
        logger = SimpleNamespace(_wandb_init=options, _mlflow_client=None, _run_name=options["name"])
        join_group(logger, attributes, folder)
        return logger._wandb_init["name"], logger._wandb_init["group"], logger._run_name

    name = "PLAN, PACS, held out ink, seed 3"
    assert joined(name=None) == (name, "PLAN, PACS", name)
    (tmp_path / "first" / "sweep.json").write_text("{}", encoding="utf-8")
    assert joined(name=None) == (name, "first", name)
    assert joined(name="mine", group="ours") == ("mine", "ours", "mine")
