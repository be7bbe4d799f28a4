from __future__ import annotations

import json

import pytest

from fedvlp.tools.sweep import Job, Status, SweepFile, lock_sweep
from fedvlp.utils.errors import UserError
from tests.helpers.sweep_stubs import finish


def test_states_are_kept_but_folders_count_more(tmp_path):
    names = ("ended", "lost", "stopped", "failed", "running", "waiting")
    jobs = [Job(name, (), tmp_path / name) for name in names]
    first = SweepFile(tmp_path, jobs, {name: {"seed": 7} for name in names})
    for name, state in zip(names, ("running", "done", "interrupted", "failed", "running"), strict=False):
        first.set(name, Status(state, 2.0, "error" if state == "failed" else ""))
    written = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert written["failed"] == {"seed": 7, "state": "failed", "seconds": 2.0, "error": "error"}
    (tmp_path / "ended").mkdir()
    finish(tmp_path / "ended")
    again = SweepFile(tmp_path, jobs, {})
    assert {name: status.state for name, status in again.statuses.items()} == {
        **{"ended": "done", "lost": "waiting", "stopped": "interrupted"},
        **{"failed": "waiting", "running": "interrupted", "waiting": "waiting"},
    }
    assert again.seconds >= first.seconds_before


def test_runs_of_earlier_calls_stay_and_a_damaged_file_is_no_harm(tmp_path):
    SweepFile(tmp_path, [Job("a", (), tmp_path / "a")], {}).write()
    SweepFile(tmp_path, [Job("b", (), tmp_path / "b")], {}).write()
    assert json.loads((tmp_path / "sweep.json").read_text())["runs"].keys() == {"a", "b"}
    (tmp_path / "sweep.json").write_text('{"runs": ')
    assert SweepFile(tmp_path, [], {}).entries == {}


def test_one_sweep_at_a_time(tmp_path):
    with lock_sweep(tmp_path / "new"), pytest.raises(UserError, match="Another sweep"), lock_sweep(tmp_path / "new"):
        raise AssertionError("Two hold it.")
    with lock_sweep(tmp_path / "new"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output"), lock_sweep(tmp_path / "file"):
        pass
