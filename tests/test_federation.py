"""A federation of the smallest method: rejected options, failing loggers, damaged checkpoints, aggregators."""

import json

import lightning as L
import pytest
import torch
from PIL import Image
from torch import nn

from fedvlp.callbacks import MetricsLoggers
from fedvlp.commands.cli import main
from fedvlp.core.aggregation.robust import CoordinateMedian
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.runs.checkpoint import load_checkpoint, load_deployed
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks


def test_a_run_learns_and_writes_its_results(tmp_path, rendered_figures):
    run = federation(tmp_path, default_callbacks=True)
    run.fit(Linear(), Points())
    rows = run.run_state.history
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[-1]["held_out"] == rows[-1]["held_out/other"] > 90
    assert rows[-1]["client/client0/loss"] < rows[0]["client/client0/loss"]
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["accuracy"]["last round (3)"]["held_out"] == rows[-1]["held_out"]
    assert summary["communication_per_client_and_round"]["upload_parameters"] == 12
    assert len((run.folder / "metrics.csv").read_text().splitlines()) == 4
    with Image.open(run.folder / "accuracy.png") as picture:
        assert min(picture.size) > 500
        assert len(picture.getcolors(1 << 24)) > 20


def test_the_best_prompts_come_from_the_first_round_with_the_best_validation(tmp_path, monkeypatch):
    scores = iter([40.0, 70.0, 55.0, 70.0, 10.0])
    run = federation(tmp_path, rounds=5, **file_callbacks())
    monkeypatch.setattr(run, "evaluate", lambda *state: {"validation": next(scores), "held_out": 99.0})
    run.fit(Linear(), Points())
    two, five = (
        federation(tmp_path, rounds=rounds, default_callbacks=False).fit(Linear(), Points()) for rounds in (2, 5)
    )
    best, last = (load_deployed(run.folder / f"{name}.safetensors")[0] for name in ("prompts_best", "prompts"))
    assert torch.equal(best["weight"], two.deployed["weight"])
    assert torch.equal(last["weight"], five.deployed["weight"])
    assert not torch.equal(best["weight"], last["weight"])


def test_a_trained_tensor_that_is_neither_uploaded_nor_personal_is_rejected(tmp_path):
    class Leaky(Linear):
        def configure_phases(self):
            return [Phase("train", train=("weight",), upload=(), strategy=FedAvg())]

    with pytest.raises(UserError, match="neither uploads nor keeps"):
        federation(tmp_path, default_callbacks=True).fit(Leaky(), Points())
    assert not list(tmp_path.iterdir())


def test_a_phase_with_an_unknown_tensor_is_rejected(tmp_path):
    class Misspelt(Linear):
        def configure_phases(self):
            return [Phase("train", train=("wieght",), upload=("weight",), strategy=FedAvg())]

    with pytest.raises(UserError, match="wieght"):
        federation(tmp_path).fit(Misspelt(), Points())


class BrokenLogger(L.pytorch.loggers.CSVLogger):
    calls = 0

    def log_metrics(self, metrics, step=None):
        BrokenLogger.calls += 1
        raise ConnectionError("the service is away")


def test_a_failing_logger_does_not_stop_training(tmp_path, capsys):
    BrokenLogger.calls = 0
    run = federation(tmp_path, logger=BrokenLogger(tmp_path / "logs"), callbacks=MetricsLoggers())
    run.fit(Linear(), Points())
    assert len(run.run_state.history) == 3
    assert BrokenLogger.calls == 1
    assert "ConnectionError: the service is away" in capsys.readouterr().out


def test_a_checkpoint_of_another_run_is_rejected_with_the_difference(tmp_path):
    federation(tmp_path, name="run", **file_callbacks()).fit(Linear(), Points())
    for change, module, expected in [
        ({"seed": 1}, Linear(), "training.seed: was 0, is 1"),
        ({"epochs": 2}, Linear(), "training.local.epochs: was 1, is 2"),
        ({}, Linear(learning_rate=0.25), "optimizer.lr: was 0.5, is 0.25"),
    ]:
        with pytest.raises(UserError, match=expected):
            federation(tmp_path, name="run", **change).fit(module, Points(), ckpt_path="last")
    data = Points()
    data.split_hash = "other"
    with pytest.raises(UserError, match="split: was 'points', is 'other'"):
        federation(tmp_path, name="run").fit(Linear(), data, ckpt_path="last")


def test_a_planted_pickle_is_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = tmp_path / "checkpoints" / "round-00001.safetensors"
    path.parent.mkdir()
    torch.save(Bomb(), path)
    with pytest.raises(UserError, match="damaged, or not written"):
        load_checkpoint(path)


@pytest.mark.parametrize("option", ["epochs", "evaluate_every", "steps", "cohort_size", "num_threads"])
def test_counts_below_one_are_rejected(tmp_path, option):
    with pytest.raises(UserError, match=option):
        federation(tmp_path, **{option: 0})


def test_zero_rounds_leave_the_module_unchanged(tmp_path):
    module = Linear()
    federation(tmp_path, rounds=0, default_callbacks=False).fit(module, Points())
    assert not module.weight.any()


def test_replacing_a_tensor_during_training_stops_the_run(tmp_path):
    class Replaces(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.weight = nn.Parameter(self.weight.detach().clone())
            return loss

    with pytest.raises(UserError, match=r"replaced the tensors weight.*copy_"):
        federation(tmp_path).fit(Replaces(), Points())


def test_the_chosen_aggregator_replaces_the_mean(tmp_path):
    class Median(Linear):
        def configure_phases(self):
            return [Phase("train", ("weight",), ("weight",), FedAvg(aggregator=CoordinateMedian()))]

    def weight(module, **options):
        return federation(tmp_path, default_callbacks=False, **options).fit(module, Points()).shared["weight"]

    chosen = weight(Linear(), aggregation=CoordinateMedian())
    assert torch.equal(chosen, weight(Median()))
    assert not torch.equal(chosen, weight(Linear()))


def print_config(capsys, *options):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config=quickstart", *options, "--print_config"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_the_command_line_accepts_short_names_of_aggregators(capsys):
    text = print_config(capsys, "--trainer.server.aggregation=TrimmedMean", "--trainer.server.aggregation.share=0.34")
    assert "class_path: fedvlp.TrimmedMean" in text
    assert "share: 0.34" in text
    options = ["--trainer.server.aggregation=NormClipping", "--trainer.server.aggregation.max_norm=2"]
    text = print_config(
        capsys, *options, "--trainer.server.aggregation.inner=Krum", "--trainer.server.aggregation.inner.byzantine=1"
    )
    assert text.index("fedvlp.NormClipping") < text.index("fedvlp.Krum") < text.index("byzantine: 1")
