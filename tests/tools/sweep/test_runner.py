from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import pytest

from fedvlp.tools.sweep import Job, Status, run_jobs, runner
from fedvlp.utils.files import locked
from tests.helpers import sweep_stubs as stubs


def jobs_of(tmp_path: Path, *words: str) -> list[Job]:
    """One job for each word, which says how it will end."""
    folders = [tmp_path / f"{number}-{word}" for number, word in enumerate(words)]
    return [Job(folder.name, (word, str(folder)), folder) for folder, word in zip(folders, words, strict=True)]


def made(jobs: list[Job], workers: int = 2, **options: object) -> dict[str, list[Status]]:
    """Makes the jobs and returns all that was reported of each."""
    reports: dict[str, list[Status]] = {job.name: [] for job in jobs}
    run_jobs(jobs, workers, stubs.train, lambda job, status: reports[job.name].append(status), **options)
    return reports


def states_of(reports: dict[str, list[Status]]) -> dict[str, list[str]]:
    """The states that were reported of each job."""
    states = {}
    for name, statuses in reports.items():
        states[name] = [status.state for status in statuses]
    return states


def processes_of(jobs: list[Job]) -> list[int]:
    """The processes of all attempts."""
    return list(chain.from_iterable(stubs.attempts(job.folder) for job in jobs))


def wait_for(what: Callable[[], object]) -> None:
    """Waits until something is so."""
    for _ in range(3000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("It took too long.")


def is_alive(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_that_fails_or_is_killed_fails_alone(tmp_path):
    jobs = jobs_of(tmp_path, "raise", "end", "refuse", "kill", "nothing", "end")
    reports = made(jobs)
    assert states_of(reports) == {
        "0-raise": ["running", "failed"],
        "1-end": ["running", "done"],
        "2-refuse": ["running", "failed"],
        "3-kill": ["running", "failed"],
        "4-nothing": ["running", "failed"],
        "5-end": ["running", "done"],
    }
    errors = {name: of_run[-1].error for name, of_run in reports.items()}
    assert errors["0-raise"].startswith("Traceback")
    assert errors["0-raise"].endswith("ValueError: no such luck")
    assert errors["2-refuse"] == "fedvlp: error: a bad root\nand more of it"
    assert "SIGKILL" in errors["3-kill"]
    assert errors["4-nothing"] == "It ended without a summary.json."
    assert errors["5-end"] == ""
    assert len(set(processes_of(jobs))) == len(jobs)


def test_the_log_keeps_all_attempts(tmp_path):
    (job,) = jobs_of(tmp_path, "refuse")
    made([job])
    made([job])
    assert job.log.read_text().count("$ fedvlp refuse") == 2
    assert job.error(1) == "fedvlp: error: a bad root\nand more of it"


def test_a_run_that_has_ended_meanwhile_is_not_made(tmp_path):
    (job,) = jobs_of(tmp_path, "end")
    job.folder.mkdir()
    stubs.finish(job.folder)
    assert made([job])[job.name][-1].state == "done"
    assert not stubs.attempts(job.folder)


def test_devices_are_dealt_out(tmp_path):
    jobs = jobs_of(tmp_path, "end", "end", "end")
    made(jobs, 2, devices=("GPU-a", "GPU-b"))
    printed = "".join(job.log.read_text().partition("\n")[2] for job in jobs)
    assert {line.split()[2] for line in printed.splitlines()} == {"GPU-a", "GPU-b"}


def test_a_run_waits_for_the_one_that_makes_it_already(tmp_path):
    (job,) = jobs_of(tmp_path, "end")
    job.folder.mkdir()
    states = tmp_path / "states"
    with locked(job.log):
        other = get_context("forkserver").Process(target=stubs.make, args=([job], states))
        other.start()
        wait_for(states.exists)
        wait_for(job.log.exists)
        assert not stubs.attempts(job.folder)
        stubs.finish(job.folder)
    other.join()
    assert states.read_text().splitlines()[-1] == f"{job.name} done"
    assert not stubs.attempts(job.folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_runs_end_with_the_sweep_and_go_on_with_the_next(tmp_path, number):
    jobs = jobs_of(tmp_path, "end", "wait", "wait")
    states = tmp_path / "states"
    sweep = get_context("forkserver").Process(target=stubs.make, args=(jobs, states))
    sweep.start()
    wait_for(lambda: all(stubs.attempts(job.folder) for job in jobs))
    wait_for(lambda: f"{jobs[0].name} done" in states.read_text())
    os.kill(sweep.pid, number)
    sweep.join()
    assert sweep.exitcode == (-number if number == signal.SIGKILL else 1)
    wait_for(lambda: not any(is_alive(process) for process in processes_of(jobs)))
    reported = states.read_text().splitlines()[4:]
    assert reported == ([] if number == signal.SIGKILL else [f"{job.name} interrupted" for job in jobs[1:]])
    reports = made([job for job in jobs if not job.is_done])
    assert [of_run[-1].state for of_run in reports.values()] == ["done", "done"]
    assert [len(stubs.attempts(job.folder)) for job in jobs] == [1, 2, 2]


def test_an_interruption_that_python_drops_is_not_lost():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with runner._interruptible() as check:
            check()
            with suppress(KeyboardInterrupt):  # as in a hook of os.fork
                signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                check()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
