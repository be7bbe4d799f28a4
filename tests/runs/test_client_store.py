"""Client states on disk: same results, nothing lost if the run is killed at any time, and no leftover files."""

import gc
import os
import shutil
from pathlib import Path

import pytest
import torch

from fedvlp.core.state import RunState, ServerState
from fedvlp.runs.checkpoint import load_checkpoint, load_deployed, save_checkpoint
from fedvlp.runs.client_store import StatesOnDisk, StoreAtSites, are_at_sites, reset_states, state_files, update_states
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_same_run
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks

OPTIONS = {"rounds": 4, "cohort_size": 2, "reset_optimizer": False, "epochs": 0.5, "name": "run"}


def run(tmp_path, ckpt_path=None, **options):
    made = federation(tmp_path, **{**OPTIONS, **file_callbacks(), **options})
    made.fit(PersonalBias(), Points(), ckpt_path=ckpt_path)
    return made


def checkpoint(federation, round):
    """Load the state after a round from its file."""
    return load_checkpoint(federation.folder / "checkpoints" / f"round-{round:05}.safetensors")[0]


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    return run(tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    return run(tmp_path_factory.mktemp("disk"), personal_on_disk=True)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Run two rounds, with an old checkpoint and files that the next round deletes."""
    folder = tmp_path_factory.mktemp("begun")
    run(folder, personal_on_disk=True, rounds=2)
    return folder


def test_on_disk_equals_in_memory(memory, disk):
    assert isinstance(disk.run_state.personal, StatesOnDisk)
    assert_same_run(memory.run_state, disk.run_state)
    assert_same_run(checkpoint(memory, 4), checkpoint(disk, 4))
    for name in ("prompts", "prompts_best"):
        one, other = [load_deployed(each.folder / f"{name}.safetensors")[1] for each in (memory, disk)]
        assert one.keys() == other.keys()
        for client, state in one.items():
            assert torch.equal(state["bias"], other[client]["bias"])
    scores = [each.validate(PersonalBias(), Points(), str(each.folder)) for each in (memory, disk)]
    assert scores[0] == scores[1]


def test_unused_files_are_deleted(disk):
    files = {path.name for path in (disk.folder / "clients").iterdir()}
    headers = [load_checkpoint(path)[0].personal for path in (disk.folder / "checkpoints").iterdir()]
    headers += [load_deployed(path)[1] for path in disk.folder.glob("prompts*.safetensors")]
    assert files == set().union(*(personal.files.values() for personal in headers))
    assert len(files) <= 3 * 4  # clients; two checkpoints and two prompts may refer to other files


class Killed(BaseException):
    """End of a process, which the library never catches."""


class Killer:
    """Death of a process at one of its file operations: this and all later operations only raise."""

    def __init__(self, monkeypatch, after):
        self.left = after
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Path, "write_bytes")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, operation):
        def act(*args, **options):
            self.left -= 1
            if self.left < 0:
                raise Killed
            return operation(*args, **options)

        return act


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.every_config) for part in range(1, 8))])
def test_a_run_killed_at_any_file_operation_resumes_to_the_same_result(tmp_path, monkeypatch, begun, memory, part):
    """Kill a run at each operation of its third round in turn; it resumes to the result of an uninterrupted run."""
    for after in range(part, 100, 8):
        folder = shutil.copytree(begun, tmp_path / str(after))
        with monkeypatch.context() as patched:
            Killer(patched, after)
            try:
                run(folder, personal_on_disk=True, rounds=3, ckpt_path="last")
            except Killed:
                is_over = False
            else:
                is_over = True
        # A killed process releases its lock; here a reference cycle holds it, which Python 3.14 frees later.
        gc.collect()
        again = run(folder, personal_on_disk=True, rounds=3, ckpt_path="last")
        assert_same_run(again.run_state, checkpoint(memory, 3))
        assert not list((again.folder / "clients").glob(".*"))
        if is_over:
            assert after > 20
            return
    pytest.fail("more operations than were tried")


def test_from_disk_to_memory_but_not_back(tmp_path, begun, memory):
    folder = shutil.copytree(begun, tmp_path / "run")
    run(folder, rounds=3, ckpt_path="last")
    assert_same_run(run(folder, ckpt_path="last").run_state, memory.run_state)
    with pytest.raises(UserError, match="personal_on_disk to false"):
        run(folder, rounds=5, personal_on_disk=True, ckpt_path="last")


def test_states_at_sites_are_known_only_by_name():
    store = StoreAtSites()
    states = update_states(store.open({}, "personal"), {0: "000000-00002-1.safetensors", 3: ""})
    assert are_at_sites(states)
    assert dict(states) == {0: {}}
    assert state_files(states) == {0: "000000-00002-1.safetensors"}
    assert reset_states(states, store.open({}, "personal"), [0]).keys() == set()
    assert state_files(store.open(states, "personal")) == state_files(states)
    with pytest.raises(UserError, match="not at sites"):
        store.open({0: {"bias": torch.zeros(1)}}, "personal")


def test_a_checkpoint_names_files_at_sites_without_needing_them(tmp_path):
    personal_states = StatesOnDisk(None, "personal", {1: "000001-00000-0.safetensors"})
    state = RunState(ServerState.start({"weight": torch.ones(2)}), personal=personal_states)
    model = {"class_path": "a.B", "init_args": {}, "clip_fingerprint": ""}
    description = {"model": model, "optimizer": None, "protocol": "", "split": "", "training": {}}
    path = tmp_path / "checkpoints" / "round-00001.safetensors"
    save_checkpoint(path, state, description)
    found = load_checkpoint(path)[0]
    assert are_at_sites(found.personal)
    assert state_files(found.personal) == {1: "000001-00000-0.safetensors"}
