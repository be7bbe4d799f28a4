"""Checkpoints and prompts: what is damaged or does not fit is refused, and a run resumes from the checkpoint before."""

import shutil

import pytest
import torch

from fedvlp.runs.descriptions import load_trained
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_same_run
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


def test_trained_tensors_of_the_method_are_taken(folder, finished):
    for path in (folder, folder / "prompts.safetensors", folder / "checkpoints" / "round-00003.safetensors"):
        deployed, personal = load_trained(path, PersonalBias())
        assert torch.equal(deployed["weight"], finished.run_state.server.deployed["weight"])
        assert torch.equal(personal[2]["bias"], finished.run_state.personal[2]["bias"])


def test_only_last_may_start_anew(tmp_path):
    for where in ("", str(tmp_path / "gone"), str(tmp_path / "gone.safetensors")):
        with pytest.raises(UserError, match="last"):
            federation(tmp_path / "runs", **file_callbacks()).fit(PersonalBias(), Points(), ckpt_path=where)
    assert not (tmp_path / "runs").exists()
    made = federation(tmp_path / "runs", **file_callbacks())
    made.fit(PersonalBias(), Points(), ckpt_path="last")
    assert made.run_state.server.round == 3


@pytest.mark.parametrize("damaged", ["checkpoints/round-00003.safetensors", "clients/*-00002-*.safetensors"])
def test_a_flipped_bit_costs_the_newest_round_and_one_line(tmp_path, capsys, damaged):
    options = {"name": "run", "personal_on_disk": True, "reset_optimizer": False, **file_callbacks()}
    made, whole = (federation(tmp_path / name, **options) for name in ("damaged", "whole"))
    for each in (made, whole):
        each.fit(PersonalBias(), Points())
    path = max(made.folder.glob(damaged))
    content = bytearray(path.read_bytes())
    content[-20] ^= 8
    path.write_bytes(content)
    again = federation(tmp_path / "damaged", **options)
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Going back to the checkpoint before" in line]
    assert line.startswith(f"{path} is damaged")
    assert_same_run(again.run_state, whole.run_state)
