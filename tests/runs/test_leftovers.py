"""What a killed run leaves is swept when the next starts; what a living one has stays."""

from __future__ import annotations

import os
import time

import pytest

from fedvlp.runs.leftovers import SECONDS_TO_CLAIM, claimed, sweep_leftovers
from fedvlp.utils.files import NODE
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks
from tests.utils.test_files import dead_process

OLD = "2020-01-02_03-04-05"


@pytest.fixture(scope="module")
def dead():
    return dead_process()


def make_old(folder):
    folder.mkdir(parents=True, exist_ok=True)
    then = time.time() - SECONDS_TO_CLAIM - 5
    os.utime(folder, (then, then))
    return folder


def test_the_next_run_sweeps(tmp_path, dead):
    parent = tmp_path / "run"
    empty = make_old(parent / OLD)
    killed = make_old(parent / f"{OLD}_1")
    (killed / f".run.{NODE}-{dead}-1.tmp").touch()
    begun = parent / f"{OLD}_2"
    (begun / "checkpoints").mkdir(parents=True)
    (begun / "checkpoints" / f".round-00001.safetensors.{NODE}-{dead}-7.tmp").write_bytes(b"half")
    (begun / "metrics.csv").write_text("round\n")
    made = federation(tmp_path, name="run", **file_callbacks())
    made.fit(Linear(), Points())
    assert not empty.exists()
    assert not killed.exists()
    assert [path.name for path in sorted(begun.rglob("*"))] == ["checkpoints", "metrics.csv"]
    assert not list(made.folder.rglob(".*"))


def test_a_living_run_keeps_its_folder(tmp_path):
    run = make_old(tmp_path / OLD)
    with claimed(run):
        make_old(run)
        sweep_leftovers(tmp_path)
        assert run.exists()
    assert not list(run.iterdir())


def test_folders_of_others_and_new_ones_stay(tmp_path):
    others = make_old(tmp_path / "pictures")
    new = tmp_path / "2999-01-02_03-04-05"
    new.mkdir()
    sweep_leftovers(tmp_path)
    assert others.exists()
    assert new.exists()
    sweep_leftovers(tmp_path / "gone")
