from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedvlp.utils import locks
from tests.helpers.forks import exit_code, fork

# Loads that one file alone, since importing torch takes seconds.
HOLD = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("locks", sys.argv[1])
locks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(locks)
with locks.locked(Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_at_a_time_and_nothing_left(tmp_path):
    inside = []
    most = []

    def work(number):
        with locks.locked(tmp_path / "new" / "file.npy"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.005)
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
    assert most == [1] * 12
    assert list((tmp_path / "new").iterdir()) == []


def test_a_lock_ends_with_its_process(tmp_path, caplog):
    """A second process waits, says so, and goes on when the first is killed."""
    command = [sys.executable, "-c", HOLD, locks.__file__, str(tmp_path / "file")]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait():
        with caplog.at_level(logging.WARNING), locks.locked(tmp_path / "file"):
            return first.wait(30)

    with first, ThreadPoolExecutor(1) as pool:
        assert first.stdout.readline() == b"held\n"
        second = pool.submit(wait)
        while "waiting for it" not in caplog.text:
            time.sleep(0.02)
        assert not second.done()
        first.kill()
        assert second.result(60) is not None
    assert list(tmp_path.iterdir()) == []


def test_who_does_not_wait_is_told_that_another_holds_the_lock(tmp_path):
    path = tmp_path / "sweep"
    with locks.locked(path), pytest.raises(BlockingIOError, match="another process"), locks.locked(path, wait=False):
        pass
    with locks.locked(path, wait=False):
        assert [file.name for file in tmp_path.iterdir()] == [".sweep.lock"]
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on "), locks.locked(path, wait=False):
            pass
    assert list(tmp_path.iterdir()) == []


def test_who_does_not_wait_needs_a_lock_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), locks.locked(tmp_path / "file" / "below", wait=False):
        pass


def refuse(handle, blocking):
    """What a disk without locks answers."""
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_where_there_can_be_no_lock_nobody_waits(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with locks.locked(tmp_path / "file" / "below"):
        pass
    monkeypatch.setattr("filelock.lock_descriptor", refuse)
    with locks.locked(tmp_path / "a"), locks.locked(tmp_path / "a"):
        assert not (tmp_path / "a").exists()


def test_a_file_that_cannot_be_removed_while_it_is_open_is_removed_afterwards(tmp_path, monkeypatch):
    """As on Windows, where who has opened it meanwhile also keeps it from being removed."""
    opened = set()
    close = os.close

    def acquired(handle, blocking):
        opened.add(handle)
        return True

    def closed(handle):
        opened.discard(handle)
        close(handle)

    def unlinked(path, missing_ok):
        if opened:
            raise PermissionError
        os.unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(locks, "IS_WINDOWS", True)
        patched.setattr("filelock.lock_descriptor", acquired)
        patched.setattr(os, "close", closed)
        patched.setattr(Path, "unlink", unlinked)
        with locks.locked(tmp_path / "first"):
            pass
        with locks.locked(tmp_path / "second"):
            opened.add("another's")
    assert [path.name for path in tmp_path.iterdir()] == [".second.lock"]


def test_what_a_process_forks_does_not_hold_its_lock(tmp_path):
    """Such as readers of images, which outlive a killed process for some seconds."""
    reading, writing = os.pipe()
    with locks.locked(tmp_path / "file"):
        child = fork(os.read, reading, 1, output=tmp_path / "output.txt")
    with locks.locked(tmp_path / "file", wait=False):
        assert child.is_alive()
        os.write(writing, b"!")
        assert exit_code(child) == 0
    with locks.locked(tmp_path / "file", wait=False):
        child = fork(os.read, reading, 1, output=tmp_path / "output.txt")
        os.write(writing, b"!")
        assert exit_code(child) == 0
        assert (tmp_path / ".file.lock").exists()
        with pytest.raises(BlockingIOError), locks.locked(tmp_path / "file", wait=False):
            pass
    os.close(reading)
    os.close(writing)
