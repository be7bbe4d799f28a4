"""What stays on the clients, on disk: the same results, nothing lost whenever the run is killed, nothing left over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from fedvlp.callbacks import Checkpoints, MetricsFile
from fedvlp.core.module import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.runs.checkpoint import load_checkpoint, load_deployed
from fedvlp.runs.client_store import StatesOnDisk
from fedvlp.utils import tensor_files
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation


class Personal(Linear):
    """Two phases, a personal bias, and AdamW, which remembers."""

    personal = ("bias",)

    def __init__(self):
        super().__init__()
        self.make_optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.1)
        self.bias = torch.nn.Parameter(torch.zeros(3))

    def configure_phases(self):
        both = Phase("both", train=("weight", "bias"), upload=("weight",), strategy=FedAvg())
        return [both, Phase("weight", train=("weight",), upload=("weight",), strategy=FedAvg())]

    def forward(self, inputs):
        return super().forward(inputs) + self.bias


OPTIONS = {"rounds": 4, "cohort_size": 2, "reset_optimizer": False, "local_epochs": 0.5, "name": "run"}


def run(tmp_path, ckpt_path=None, **options):
    made = federation(tmp_path, **{**OPTIONS, **options})
    made.fit(Personal(), Points(), ckpt_path=ckpt_path)
    return made


def everything(progress):
    """All tensors of a federation's progress, by a name that says where they stand; and all rows but their times."""
    groups = {"personal": progress.personal, "optimizer": progress.optimizers}
    states = {f"{group}/{client}": state for group, all in groups.items() for client, state in all.items()}
    states |= {"shared": progress.server.shared, "deployed": progress.server.deployed}
    rows = [{name: value for name, value in row.items() if "seconds" not in name} for row in progress.history]
    return {f"{where}/{name}": value for where, state in states.items() for name, value in state.items()}, rows


def assert_same(one, other):
    (tensors, rows), (others, other_rows) = everything(one), everything(other)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in tensors.items())
    assert rows == other_rows


@pytest.mark.parametrize("change", [{}, {"reset_optimizer": True}])
def test_on_disk_equals_in_memory(tmp_path, change):
    memory = run(tmp_path / "memory", **change)
    disk = run(tmp_path / "disk", personal_on_disk=True, **change)
    assert isinstance(disk.run_state.personal, StatesOnDisk)
    assert_same(memory.run_state, disk.run_state)
    checkpoints = [each.folder / "checkpoints" / "round-00004.safetensors" for each in (memory, disk)]
    assert_same(*(load_checkpoint(path)[0] for path in checkpoints))
    for name in ("prompts", "prompts_best"):
        states = [load_deployed(each.folder / f"{name}.safetensors")[1] for each in (memory, disk)]
        assert {client: state["bias"].tolist() for client, state in states[0].items()} == {
            client: state["bias"].tolist() for client, state in states[1].items()
        }
    assert disk.validate(Personal(), Points(), str(disk.folder)) == memory.validate(
        Personal(), Points(), str(memory.folder)
    )


def test_files_that_nobody_knows_are_deleted(tmp_path):
    disk = run(tmp_path, personal_on_disk=True, rounds=9)
    files = {path.name for path in (disk.folder / "clients").iterdir()}
    headers = [load_checkpoint(path)[0].personal for path in (disk.folder / "checkpoints").iterdir()]
    headers += [load_deployed(path)[1] for path in disk.folder.glob("prompts*.safetensors")]
    assert files == {name for personal in headers for name in personal.files.values()}
    assert len(files) <= 3 * 4  # clients, and two checkpoints and two prompts that may know others


def quick():
    """Only the callbacks that write files in every round."""
    return {"default_callbacks": False, "callbacks": [Checkpoints(), MetricsFile()]}


class Killed(BaseException):
    pass


class Killer:
    """Lets a process die at one of its file operations: it and all later ones do nothing but raise."""

    def __init__(self, monkeypatch, after):
        self.left = after
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Path, "write_bytes")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))
        monkeypatch.setattr(tensor_files, "save_file", self.counted(tensor_files.save_file))

    def counted(self, operation):
        def act(*args, **options):
            self.left -= 1
            if self.left < 0:
                raise Killed
            return operation(*args, **options)

        return act


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), **quick()).run_state


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of two rounds, which has an old checkpoint and files that the next round deletes."""
    folder = tmp_path_factory.mktemp("begun")
    run(folder, personal_on_disk=True, rounds=2, **quick())
    return folder


@pytest.mark.parametrize("part", range(4))
def test_killed_at_any_file_operation_goes_on_to_the_same(tmp_path, monkeypatch, begun, whole, part):
    """A run is killed at each operation of its third round in turn, and goes on to what was never interrupted."""
    for after in range(part, 100, 4):
        folder = shutil.copytree(begun, tmp_path / str(after))
        with monkeypatch.context() as patched:
            Killer(patched, after)
            try:
                run(folder, personal_on_disk=True, rounds=3, **quick(), ckpt_path="last")
            except Killed:
                is_over = False
            else:
                is_over = True
        again = run(folder, personal_on_disk=True, **quick(), ckpt_path="last")
        assert_same(again.run_state, whole)
        assert not list((again.folder / "clients").glob(".*"))
        if is_over:
            assert after > 20
            return
    pytest.fail("more operations than were tried")


def test_damaged_file_of_a_client_falls_back_to_the_checkpoint_before(tmp_path, capsys):
    first = run(tmp_path, personal_on_disk=True)
    newest, before = (load_checkpoint(first.folder / "checkpoints" / f"round-0000{n}.safetensors")[0] for n in (4, 3))
    changed = set(newest.personal.files.values()) - set(before.personal.files.values())
    (first.folder / "clients" / changed.pop()).write_bytes(b"")
    again = run(tmp_path, personal_on_disk=True, ckpt_path="last")
    assert "Going back to the checkpoint before it" in capsys.readouterr().out
    assert_same(again.run_state, run(tmp_path / "whole").run_state)


def test_from_disk_to_memory_but_not_back(tmp_path):
    run(tmp_path, personal_on_disk=True, rounds=2)
    run(tmp_path, rounds=3, ckpt_path="last")
    assert_same(run(tmp_path, ckpt_path="last").run_state, run(tmp_path / "whole").run_state)
    with pytest.raises(UserError, match="personal_on_disk to false"):
        run(tmp_path, rounds=5, personal_on_disk=True, ckpt_path="last")
