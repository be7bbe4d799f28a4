"""Flower's SuperNode asks more often, and Flower is as the change takes it to be."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import flwr.supernode.cli
from flwr.supernode import start_client_internal

from fedvlp.sites.flower import supernode
from tests.helpers.documents import environment


def test_sleeping_is_all_that_the_loop_takes_from_the_module():
    source = inspect.getsource(start_client_internal)
    assert set(re.findall(r"\btime\.(\w+)", source)) == {"sleep"}
    assert "time.sleep(3)" in source, "Flower waits another time now: look whether this is needed"


def test_it_waits_shorter_and_is_the_same_otherwise(monkeypatch):
    slept = []
    started = []
    monkeypatch.setattr(supernode.os, "environ", {})
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(start_client_internal, "time", time)

    def run():
        start_client_internal.time.sleep(3)
        start_client_internal.time.sleep(0.25)

    monkeypatch.setattr(flwr.supernode.cli, "flower_supernode", run)
    monkeypatch.setattr(supernode, "start_ready_process", lambda folder: started.append(folder.stat().st_mode & 0o777))
    supernode.main()
    assert started == [0o700]
    assert slept == [0.5, 0.25]
    assert supernode.os.environ == {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}


READY = """
import os, subprocess, sys, time
from pathlib import Path
import flwr.supernode.cli
from fedvlp.sites.flower.supernode import COMMAND, start_ready_process

folder = Path(sys.argv[1])

def answer():
    child = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"])
    (folder / f"{sys.argv[2]}.new").write_text(f"{sys.argv[1:]} {child.returncode} {os.getppid()}")
    (folder / f"{sys.argv[2]}.new").rename(folder / sys.argv[2])

flwr.supernode.cli.flwr_clientapp = answer
start_ready_process(folder)
for name in ("first", "second"):
    subprocess.run([COMMAND, "--token", name], check=True)
while not all((folder / name).exists() for name in ("first", "second")):
    time.sleep(0.01)
"""


def test_a_process_that_is_ready_answers_for_flower(tmp_path):
    """It is forked anew each time, has the arguments, can wait for what it starts, and ends with the SuperNode."""
    done = subprocess.run(
        [sys.executable, "-c", READY, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = {name: (tmp_path / name).read_text(encoding="utf-8").rsplit(" ", 1) for name in ("first", "second")}
    assert said["first"][0] == "['--token', 'first'] 3"
    assert said["second"][0] == "['--token', 'second'] 3"
    parents = {parent for _, parent in said.values()}
    assert len(parents) == 1
    wait_for_end(int(parents.pop()))


def wait_for_end(process):
    """Returns once a process has ended; fails after a while."""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"{process} still runs")
