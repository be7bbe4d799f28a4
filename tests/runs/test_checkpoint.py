"""Damaged or mismatching checkpoints are rejected, and a run resumes from the previous checkpoint."""

import shutil

import pytest

from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_same_run
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks


def test_only_last_may_start_from_scratch(tmp_path):
    for where in ("", str(tmp_path / "gone"), str(tmp_path / "gone.safetensors")):
        with pytest.raises(UserError, match="last"):
            federation(tmp_path / "runs", **file_callbacks()).fit(PersonalBias(), Points(), ckpt_path=where)
    assert not (tmp_path / "runs").exists()
    made = federation(tmp_path / "runs", **file_callbacks())
    made.fit(PersonalBias(), Points(), ckpt_path="last")
    assert made.run_state.server.round == 3


OPTIONS = {"name": "run", "personal_on_disk": True, "reset_optimizer": False, **file_callbacks()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    made = federation(tmp_path_factory.mktemp("whole"), **OPTIONS)
    made.fit(PersonalBias(), Points())
    return made


@pytest.mark.parametrize("damaged", ["checkpoints/round-00003.safetensors", "clients/*-00002-*.safetensors"])
def test_a_flipped_bit_costs_the_newest_round_and_one_line(tmp_path, capsys, whole, damaged):
    folder = shutil.copytree(whole.folder, tmp_path / "run" / "damaged")
    path = max(folder.glob(damaged))
    content = bytearray(path.read_bytes())
    content[-20] ^= 8
    path.write_bytes(content)
    again = federation(tmp_path, **OPTIONS)
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Trying the previous checkpoint" in line]
    assert line.startswith(f"{path} is damaged")
    assert_same_run(again.run_state, whole.run_state)
