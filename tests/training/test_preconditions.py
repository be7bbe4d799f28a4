"""What a federation refuses or says before it trains."""

import logging
import os

import pytest
import torch

from fedvlp.training.distributed import GlooStrategy
from fedvlp.training.preconditions import check_writable, make_fabric
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked
from tests.helpers.toy_federation import Linear, Points, federation


class TrainsNever(Linear):
    """Fails the test as soon as it is trained."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("this should have been refused before training")


class HeldOutOnly(Points):
    """Points of which none validates."""

    def evaluation_splits(self):
        return [split for split in super().evaluation_splits() if split.role != "validation"]


def with_optimizer(make):
    method = TrainsNever()
    method.make_optimizer = make
    return method


@pytest.mark.parametrize("devices", [0, "0", -2, 10**12, "1000000000000", [], "x"])
def test_devices_that_do_not_exist(devices):
    with pytest.raises(UserError, match="devices"):
        make_fabric(devices=devices, accelerator="cpu", strategy="auto", precision="32-true")


@pytest.mark.parametrize("options", [{"strategy": "ddq"}, {"accelerator": "abacus"}, {"num_nodes": 0}, {"devices": 0}])
def test_a_federation_that_cannot_be(tmp_path, options):
    with pytest.raises(UserError, match=next(iter(options))):
        federation(tmp_path, **options)


def test_processes_that_run_the_same_program(tmp_path):
    for strategy in ("auto", "ddp"):
        made = federation(tmp_path, devices=2, strategy=strategy, collective_timeout=7.5)
        assert isinstance(made.fabric.strategy, GlooStrategy)
        assert made.fabric.strategy.limit == 7.5
        assert made.fabric.world_size == 2
    assert not isinstance(federation(tmp_path, devices=1).fabric.strategy, GlooStrategy)
    with pytest.raises(UserError, match="by auto or ddp alone"):
        federation(tmp_path, devices=2, strategy="ddp_spawn")


def test_what_stays_on_disk_needs_checkpoints(tmp_path):
    with pytest.raises(UserError, match="personal_on_disk needs the checkpoints"):
        federation(tmp_path, personal_on_disk=True, default_callbacks=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda parameters: torch.optim.LBFGS(parameters), "LBFGS computes the loss several times"),
        (lambda parameters: torch.optim.SGD(parameters, lr=-1.0), "Invalid learning rate"),
        (lambda parameters: torch.optim.SGD(parameters, lr=float("nan")), "lr of SGD to be a finite number"),
        (lambda parameters: torch.optim.Adam(parameters, betas=(0.9, 7.0)), "Invalid beta"),
    ],
)
def test_optimizers_that_no_client_can_use(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        federation(tmp_path).fit(with_optimizer(make), Points())
    assert not list(tmp_path.iterdir())


def test_a_cohort_of_more_than_all_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedvlp"):
        federation(tmp_path, rounds=1, cohort_size=5).fit(Linear(), Points(clients=3))
    assert "cohort_size is 5, but all 3 clients" in caplog.text


def test_patience_needs_images_that_validate(tmp_path):
    with pytest.raises(UserError, match="patience=2 would never stop"):
        federation(tmp_path, patience=2).fit(TrainsNever(), HeldOutOnly())


def test_where_nothing_validates_the_last_round_is_reported(tmp_path, caplog, capsys):
    with caplog.at_level(logging.WARNING, "fedvlp"):
        federation(tmp_path, rounds=2).fit(Linear(), HeldOutOnly())
    assert "none validates" in caplog.text
    printed = capsys.readouterr().out
    assert "last round (2)" in printed
    assert "best on source validation" not in printed


def test_rounds_of_method_and_federation(tmp_path):
    method = TrainsNever()
    method.hparams["rounds"] = 2
    with pytest.raises(UserError, match="made for 2 rounds, but the federation has 3"):
        federation(tmp_path, rounds=3).fit(method, Points())


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        check_writable(tmp_path / "file" / "runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="read-only"):
        check_writable(tmp_path / "runs")


def test_a_bool_is_no_number_of_rounds(tmp_path):
    with pytest.raises(UserError, match="rounds: True not a number"), unchecked():
        federation(tmp_path, rounds=True)
