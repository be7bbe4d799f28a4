"""Makes runs, each in a process of its own, several at a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from fedvlp.tools.sweep.job import Job, Train, run_job
from fedvlp.tools.sweep.state import Status

GRACE = 10.0  # seconds between asking a run to stop and ending it


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    train: Train,
    report: Callable[[Job, Status], None],
    devices: Sequence[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Makes the runs in their order; a run that fails, or whose process is killed, is no harm to the others.

    Each run has a new process, so that none can change another's result. On Linux it is a copy of one in which the
    module of ``train`` is imported already. Without ``devices`` each run computes with one thread, unless
    OMP_NUM_THREADS says otherwise.

    Args:
        jobs: the runs.
        workers: how many at a time.
        train: makes a run; a function that a new process can import by its name, from a module that imports all that
            runs need.
        report: told of each change.
        devices: names for CUDA_VISIBLE_DEVICES, given to the workers in turn; none to leave the choice to the run.
        tick: called about once a second.

    Raises:
        KeyboardInterrupt: on SIGINT or SIGTERM, when all runs were stopped and reported as interrupted.
    """
    pool = Pool(train, report, devices)
    waiting = deque(jobs)
    with _interruptible() as check_interrupted, _one_thread(not devices):
        try:
            while waiting or pool.running:
                check_interrupted()
                while waiting and len(pool.running) < workers:
                    pool.start(waiting.popleft())
                pool.collect(timeout=1.0)
                tick()
        except BaseException:
            pool.stop()
            raise


@dataclass
class RunningJob:
    """A run and its process.

    Attributes:
        process: its process.
        job: the run.
        place: number of its worker, from 0.
        began: when it was started, by the monotonic clock.
    """

    process: BaseProcess
    job: Job
    place: int
    began: float

    @property
    def seconds(self) -> float:
        """How long it runs."""
        return time.monotonic() - self.began


class Pool:
    """The processes that are running.

    Args:
        train: makes a run.
        report: told of each change.
        devices: given to the workers in turn.
    """

    def __init__(self, train: Train, report: Callable[[Job, Status], None], devices: Sequence[str]) -> None:
        self.train = train
        self.report = report
        self.devices = devices
        self.context: Any = get_context("spawn")
        if sys.platform == "linux":
            # Importing torch and Lightning takes seconds: the server of forks does it once for all runs.
            self.context = get_context("forkserver")
            self.context.set_forkserver_preload([train.__module__])
        self.running: dict[Any, RunningJob] = {}

    def start(self, job: Job) -> None:
        """Starts a run in the first place that is free."""
        places = {running.place for running in self.running.values()}
        place = next(place for place in range(len(places) + 1) if place not in places)
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[place % len(self.devices)]
        process = self.context.Process(target=run_job, args=(self.train, job, environment), name=job.name)
        self.report(job, Status("running"))
        process.start()
        self.running[process.sentinel] = RunningJob(process, job, place, time.monotonic())

    def collect(self, timeout: float) -> None:
        """Reports the runs that ended; waits for one at most ``timeout`` seconds."""
        for sentinel in wait(list(self.running), timeout):
            ended = self.running.pop(sentinel)
            ended.process.join()
            seconds = ended.seconds
            if ended.job.is_done:
                self.report(ended.job, Status("done", seconds))
            else:
                error = ended.job.error(ended.process.exitcode or 0)
                self.report(ended.job, Status("failed", seconds, error))

    def stop(self) -> None:
        """Stops all runs: their checkpoints are there to go on from."""
        if _in_main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for running in self.running.values():
            _signal_all(running.process, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for running in self.running.values():
            running.process.join(max(0.0, end - time.monotonic()))
            _signal_all(running.process, getattr(signal, "SIGKILL", signal.SIGTERM))
            running.process.join()
            self.report(running.job, Status("done" if running.job.is_done else "interrupted", running.seconds))
        self.running.clear()


def _signal_all(process: BaseProcess, number: signal.Signals) -> None:
    """Sends a signal to a run and all processes that it started."""
    if process.pid is None:
        return
    if not hasattr(os, "killpg"):  # Windows has no groups of processes
        process.terminate()
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
        return
    if process.is_alive():  # it has no group of its own yet
        os.kill(process.pid, number)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Lets SIGTERM stop the sweep as Ctrl-C does, and both have their old meaning afterwards.

    Yields:
        What raises the interruption again: Python drops an exception that a signal raises in some places, such as while
        a process is forked.
    """
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if received:
            raise KeyboardInterrupt

    if not _in_main_thread():
        yield check
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # Ctrl-C is not for what runs in the background
            signal.signal(number, interrupt)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    """Whether signals may be handled here."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _one_thread(is_wanted: bool) -> Iterator[None]:
    """Lets processes that begin here compute on one core each, unless the user says otherwise."""
    is_set = "OMP_NUM_THREADS" in os.environ
    if is_wanted and not is_set:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if is_wanted and not is_set:
            del os.environ["OMP_NUM_THREADS"]
