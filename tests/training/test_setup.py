"""Setup before training: precision and devices, rejected options, and ``fast_dev_run``."""

import logging
import os
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import CSVLogger

from fedvlp.core.aggregation.robust import TrimmedMean
from fedvlp.training.distributed import GlooStrategy
from fedvlp.training.setup import bfloat16_instructions, check_writable, choose_precision, shorten_splits
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, make_callback


class TrainsNever(Linear):
    """Fails the test if it is trained."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("this should have been rejected before training")


class HeldOutOnly(Points):
    """Points without validation splits."""

    def evaluation_splits(self):
        return [split for split in super().evaluation_splits() if split.role != "validation"]


def make_method(optimizer):
    method = TrainsNever()
    method.make_optimizer = optimizer
    return method


def test_gpu_convolutions_do_not_use_tf32(tmp_path):
    with torch.backends.cudnn.flags(allow_tf32=True):
        federation(tmp_path, rounds=1).fit(Linear(), Points())
        assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("options", [{"strategy": "ddq"}, {"accelerator": "abacus"}, {"num_nodes": 0}, {"devices": 0}])
def test_invalid_device_options_are_rejected(tmp_path, options):
    with pytest.raises(UserError, match=next(iter(options))):
        federation(tmp_path, **options)


def test_several_devices_use_the_gloo_strategy(tmp_path):
    for strategy in ("auto", "ddp"):
        made = federation(tmp_path, devices=2, strategy=strategy, collective_timeout=7.5)
        assert isinstance(made.fabric.strategy, GlooStrategy)
        assert made.fabric.strategy.limit == 7.5
        assert made.fabric.world_size == 2
    assert not isinstance(federation(tmp_path, devices=1).fabric.strategy, GlooStrategy)
    with pytest.raises(UserError, match="need the strategy auto or ddp"):
        federation(tmp_path, devices=2, strategy="ddp_spawn")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda parameters: torch.optim.LBFGS(parameters), "LBFGS computes the loss several times"),
        (lambda parameters: torch.optim.SGD(parameters, lr=-1.0), "Invalid learning rate"),
        (lambda parameters: torch.optim.Adam(parameters, betas=(0.9, 7.0)), "Invalid beta"),
    ],
)
def test_unusable_optimizers_are_rejected(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        federation(tmp_path, default_callbacks=True).fit(make_method(make), Points())
    assert not list(tmp_path.iterdir())


def test_a_cohort_larger_than_all_clients_is_warned_about(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedvlp"):
        federation(tmp_path, rounds=1, cohort_size=5).fit(Linear(), Points(clients=3))
    assert "cohort_size is 5, but there are only 3 clients" in caplog.text


def test_without_validation_the_last_round_is_reported(tmp_path, caplog, capsys):
    with caplog.at_level(logging.WARNING, "fedvlp"):
        federation(tmp_path, rounds=2, default_callbacks=True).fit(Linear(), HeldOutOnly())
    assert "no validation images" in caplog.text
    printed = capsys.readouterr().out
    assert "last round (2)" in printed
    assert "best on source validation" not in printed


def test_method_and_federation_must_have_equal_rounds(tmp_path):
    method = TrainsNever()
    method.hparams["rounds"] = 2
    with pytest.raises(UserError, match="built for 2 rounds, but the federation has 3"):
        federation(tmp_path, rounds=3).fit(method, Points())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_rejected(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="read-only"):
        check_writable(tmp_path / "runs")


@pytest.fixture
def machine(monkeypatch):
    """Return a function that fakes the hardware: AVX512-BF16, AMX, CUDA, bfloat16 on the GPU, Apple's GPU."""

    def has(units=False, tiles=False, cuda=False, half_on_gpu=False, mps=False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: units, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half_on_gpu)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


@pytest.mark.parametrize(
    ("has", "accelerator", "name", "reason"),
    [
        ({}, "auto", "32-true", "no instructions"),
        ({"units": True}, "auto", "bf16-mixed", "AVX512-BF16"),
        ({"tiles": True}, "cpu", "bf16-mixed", "AMX"),
        ({"units": True, "cuda": True}, "auto", "32-true", "this GPU does not"),
        ({"cuda": True, "half_on_gpu": True}, "gpu", "bf16-mixed", "this GPU multiplies"),
        ({"units": True, "cuda": True, "half_on_gpu": True}, "cpu", "bf16-mixed", "AVX512-BF16"),
        ({"units": True, "mps": True}, "auto", "32-true", "only on CPUs and CUDA"),
        ({"units": True}, "tpu", "32-true", "only on CPUs and CUDA"),
    ],
)
def test_auto_precision_depends_on_the_hardware(machine, has, accelerator, name, reason):
    machine(**has)
    assert choose_precision("32-true", accelerator) == ("32-true", "")
    chosen, why = choose_precision("auto", accelerator)
    assert chosen == name
    assert reason in why


def test_missing_hardware_checks_of_pytorch_count_as_no(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert bfloat16_instructions() == ""


def test_the_chosen_precision_is_printed_and_recorded(machine, tmp_path, capsys):
    machine(units=True)
    run = federation(tmp_path, rounds=1, precision="auto")
    run.fit(Linear(), Points())
    assert "Precision bf16-mixed: this processor multiplies bfloat16 with AVX512-BF16." in capsys.readouterr().out
    assert run.description["training"]["precision"] == "bf16-mixed"


def test_fast_dev_run_takes_one_step_and_saves_nothing(tmp_path, capsys):
    steps, folders = [], []

    def note(trainer, module, outputs, batch, index):
        steps.append((outputs["client"].id, index))
        folders.append(trainer.folder)

    options = {"callbacks": make_callback(on_train_batch_end=note), "logger": CSVLogger(tmp_path / "logs")}
    run = federation(tmp_path, rounds=9, epochs=3, fast_dev_run=True, default_callbacks=True, **options)
    run.fit(PersonalBias(), Points(clients=2))
    assert steps == [(0, 0), (1, 0)] * 2  # two phases
    assert len(run.run_state.history) == run.options.rounds == 1
    assert run.folder is None
    assert not folders[-1].exists()
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr().out
    assert "1 step per client, 1 batch per split. Accuracies are meaningless, and nothing is saved" in printed
    assert "run folder" not in printed


def test_fast_dev_run_uses_the_aggregator_and_rejects_checkpoints(tmp_path):
    callback = LambdaCallback(on_fit_end=lambda trainer, module: None)
    run = federation(tmp_path, fast_dev_run=True, aggregation=TrimmedMean(0.25), callbacks=callback)
    run.fit(Linear(), Points(clients=4))
    with pytest.raises(UserError, match=r"starts from scratch and saves nothing. Remove ckpt_path"):
        run.fit(Linear(), Points(clients=4), ckpt_path="last")
    assert federation(tmp_path, fast_dev_run=True, rounds=0).fit(Linear(), Points()).round == 0


def test_fast_dev_run_shortens_splits_without_changing_the_data():
    data = Points()
    whole = [replace(split, loader=3 * split.loader) for split in data.evaluation_splits()]
    data.evaluation_splits = lambda: whole
    short = shorten_splits(data)
    assert [len(split.loader) for split in short.evaluation_splits()] == [1] * 4
    assert {len(split.loader) for split in data.evaluation_splits()} == {3}
    assert short.clients is data.clients
