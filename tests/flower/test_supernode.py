"""Flower's SuperNode asks more often, and Flower is as the change takes it to be."""

from __future__ import annotations

import inspect
import re
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import flwr.supernode.cli
from flwr.supernode import start_client_internal

from fedvlp.flower import supernode


def test_sleeping_is_all_that_the_loop_takes_from_the_module():
    source = inspect.getsource(start_client_internal)
    assert set(re.findall(r"\btime\.(\w+)", source)) == {"sleep"}
    assert "time.sleep(3)" in source, "Flower waits another time now: look whether this is needed"


def test_it_waits_shorter_and_is_the_same_otherwise(monkeypatch):
    slept = []
    monkeypatch.setattr(supernode.os, "environ", {})
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(start_client_internal, "time", time)

    def run():
        start_client_internal.time.sleep(3)
        start_client_internal.time.sleep(0.25)

    monkeypatch.setattr(flwr.supernode.cli, "flower_supernode", run)
    supernode.main()
    assert slept == [0.5, 0.25]
    assert supernode.os.environ == {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
