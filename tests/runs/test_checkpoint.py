"""Checkpoints and prompts: what is damaged or does not fit is refused, and a run resumes from the checkpoint before."""

from __future__ import annotations

import errno
import os
import re
import shutil

import pytest
import torch

from fedvlp.runs.checkpoint import load_checkpoint, load_deployed
from fedvlp.runs.descriptions import load_trained
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors
from tests.helpers.assertions import assert_same_run
from tests.helpers.files import rewritten
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds, as a folder and as a state."""
    made = federation(tmp_path_factory.mktemp("finished"), name="run", **file_callbacks())
    made.fit(PersonalBias(), Points())
    return made


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the run's folder."""
    return shutil.copytree(finished.folder, tmp_path / "run" / "copy")


def test_tensors_of_a_client_that_is_not_named(folder):
    def change(tensors, header):
        tensors["personal/77/bias"] = torch.zeros(3)

    with pytest.raises(UserError, match="personal/77/bias"):
        load_deployed(rewritten(folder / "prompts.safetensors", change))


def without(name):
    return lambda tensors, header: tensors.pop(name)


def with_tensor(name, value):
    return lambda tensors, header: tensors.update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("weight"), "lacks the tensor weight"),
        (with_tensor("wait", torch.zeros(1)), "'wait', which the method doesn't take"),
        (with_tensor("weight", torch.zeros(3, 4).double()), "'weight' of torch.float64; expected torch.float32"),
        (with_tensor("weight", torch.zeros(4, 3)), r"'weight' in shape \(4, 3\); expected \(3, 4\)"),
        (with_tensor("weight", torch.full((3, 4), float("nan"))), "'weight' with values that are not finite"),
        (with_tensor("personal/1/bias", torch.full((3,), float("nan"))), "'personal/1/bias' with values"),
        (with_tensor("personal/1/bias", torch.zeros(4)), "'personal/1/bias' in shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(folder, change, message):
    path = rewritten(folder / "prompts.safetensors", change)
    with pytest.raises(UserError, match=message):
        load_trained(path, PersonalBias())


def test_trained_tensors_of_the_method_are_taken(folder, finished):
    for path in (folder, folder / "prompts.safetensors", folder / "checkpoints" / "round-00003.safetensors"):
        deployed, personal = load_trained(path, PersonalBias())
        assert torch.equal(deployed["weight"], finished.run_state.server.deployed["weight"])
        assert torch.equal(personal[2]["bias"], finished.run_state.personal[2]["bias"])


@pytest.mark.parametrize("place", ["", "gone", "gone.safetensors", "/dev/zero", "/dev/null"])
def test_only_last_may_start_anew(tmp_path, place):
    where = str(tmp_path / place) if place else ""
    with pytest.raises(UserError, match="last"):
        federation(tmp_path / "runs", **file_callbacks()).fit(PersonalBias(), Points(), ckpt_path=where)
    assert not (tmp_path / "runs").exists()
    made = federation(tmp_path / "runs", **file_callbacks())
    made.fit(PersonalBias(), Points(), ckpt_path="last")
    assert made.run_state.server.round == 3


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    """The disk is full from the second checkpoint on; the run goes on from the first once there is room."""
    made = federation(tmp_path, name="run", **file_callbacks())
    sync = os.fsync
    written = []

    def full_after_one_round(descriptor):
        written.append(descriptor)
        if len(written) > 3:  # prompts, best prompts, checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_after_one_round)
        with pytest.raises(OSError, match="No space left") as caught:
            made.fit(PersonalBias(), Points())
    assert caught.value.filename == str(made.folder / "prompts.safetensors")
    assert load_checkpoint(made.folder / "checkpoints" / "round-00001.safetensors")[0].server.round == 1
    assert not list(made.folder.rglob(".*"))
    again = federation(tmp_path, name="run", **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    assert again.run_state.server.round == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (None, r"round-00003\.safetensors is damaged"),
        (
            with_tensor("shared/weight", torch.full((3, 4), torch.nan)),
            "'shared/weight' with values that are not finite",
        ),
        (with_tensor("personal/1/bias", torch.full((3,), torch.nan)), "'personal/1/bias' with values that are not"),
        (with_tensor("memory/0/0/m", torch.tensor([torch.nan])), "'memory/0/0/m' with values that are not finite"),
    ],
)
def test_a_checkpoint_that_is_cut_short_or_does_not_fit_falls_back(folder, finished, tmp_path, capsys, change, named):
    path = folder / "checkpoints" / "round-00003.safetensors"
    if change is None:
        path.write_bytes(path.read_bytes()[:1000])
    else:
        rewritten(path, change)
    again = federation(tmp_path, name="run", **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    printed = capsys.readouterr().out
    assert re.search(named, printed)
    assert "Going back to the checkpoint before it" in printed
    assert_same_run(again.run_state, finished.run_state)


@pytest.mark.parametrize("damaged", ["checkpoints/round-00003.safetensors", "clients/*-00002-*.safetensors"])
@pytest.mark.parametrize("bit", range(0, 8, 3))
def test_a_flipped_bit_costs_the_newest_round_and_one_line(tmp_path, capsys, damaged, bit):
    options = {"name": "run", "personal_on_disk": True, "reset_optimizer": False, **file_callbacks()}
    made, whole = (federation(tmp_path / name, **options) for name in ("damaged", "whole"))
    for each in (made, whole):
        each.fit(PersonalBias(), Points())
    path = max(made.folder.glob(damaged))
    content = bytearray(path.read_bytes())
    content[-20 - 100 * bit] ^= 1 << bit  # in a tensor, or in the header
    path.write_bytes(content)
    again = federation(tmp_path / "damaged", **options)
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Going back to the checkpoint before" in line]
    assert line.startswith(f"{path} is damaged")
    assert_same_run(again.run_state, whole.run_state)


def test_an_optimizer_with_numbers_that_are_none_is_refused(tmp_path):
    options = {"name": "run", "reset_optimizer": False, **file_callbacks()}
    federation(tmp_path, rounds=1, **options).fit(PersonalBias(), Points())
    (path,) = tmp_path.glob("run/*/checkpoints/*")
    name = next(name for name in read_tensors(path)[0] if name.startswith("optimizer/2/") and "exp_avg" in name)
    rewritten(path, lambda tensors, header: tensors[name].fill_(torch.inf))
    with pytest.raises(UserError, match=f"{name}' with values that are not finite"):
        federation(tmp_path, rounds=2, **options).fit(PersonalBias(), Points(), ckpt_path="last")
