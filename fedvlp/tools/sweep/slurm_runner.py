"""Makes runs as jobs of Slurm: submits what is not in the queue, and says what becomes of it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from fedvlp.tools.sweep.job import Job
from fedvlp.tools.sweep.slurm_queue import SlurmError, SlurmQueue, SlurmState
from fedvlp.tools.sweep.state import Status

SECONDS_BETWEEN_LOOKS = 15.0
CUT_OFF = frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "DEADLINE", "BOOT_FAIL"})
log = logging.getLogger(__name__)


class QueuedJobs:
    """The runs of a sweep that are missing, in the queue or on their way there.

    Args:
        jobs: the runs.
        queue: Slurm's.
        report: told of each change.
        most: how many are in the queue at a time, running ones among them.

    Attributes:
        stages: those of the jobs that are in the queue, by the runs' names.
        left: runs that are not in the queue.
    """

    def __init__(
        self, jobs: Sequence[Job], queue: SlurmQueue, report: Callable[[Job, Status], None], most: int
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.queue = queue
        self.report = report
        self.most = most
        self.found = queue.states(name for name in self.jobs if name in queue.numbers)
        self.stages: dict[str, str] = {}
        self.left: deque[Job] = deque()
        self.refusal = ""
        self.doubted: set[str] = set()

    @property
    def number_found(self) -> int:
        """How many of the runs were in the queue before anything was submitted."""
        return sum(state.stage != "ended" for state in self.found.values())

    def begin(self) -> None:
        """Submits what is not in the queue, after saying how what an earlier call put there has ended.

        Raises:
            SlurmError: if Slurm takes no job at all.
        """
        for name, job in self.jobs.items():
            state = self.found.get(name)
            if state is not None and state.stage != "ended":
                self._note(job, state.stage)
                continue
            if state is not None:
                self._close(job, state)
            self.left.append(job)
        self._submit()

    def wait(self, tick: Callable[[], None]) -> None:
        """Watches until all have ended.

        Args:
            tick: called after each look at the queue.

        Raises:
            SlurmError: if Slurm takes no job, and none is in the queue.
        """
        while self.stages or self.left:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            self._look()
            self._submit()
            tick()

    def _submit(self) -> None:
        while self.left and len(self.stages) < self.most and not self.refusal:
            try:
                self.queue.submit(self.left[0])
            except SlurmError as error:
                if not self.stages:
                    raise
                self.refusal = str(error)  # mostly a limit on a user's jobs, so it is tried again when one has ended
                log.warning("%d runs are not in the queue yet. %s", len(self.left), error)
                return
            self._note(self.left.popleft(), "waiting")

    def _look(self) -> None:
        try:
            states = self.queue.states(self.stages)
        except SlurmError as error:  # Slurm itself may be started anew, and its jobs go on meanwhile
            log.warning("The queue can't be looked at now. %s", error)
            return
        for name, state in states.items():
            job = self.jobs[name]
            if state.stage != "ended":
                self.doubted.discard(name)
                if state.stage != self.stages[name]:
                    self._note(job, state.stage)
            elif job.is_done or name in self.doubted:
                self._close(job, state)
            else:  # another machine's files, and Slurm's accounts, may come later than the end
                self.doubted.add(name)

    def _note(self, job: Job, stage: str) -> None:
        self.stages[job.name] = stage
        self.report(job, Status("running" if stage == "running" else "waiting"))

    def _close(self, job: Job, state: SlurmState) -> None:
        self.stages.pop(job.name, None)
        self.doubted.discard(job.name)
        self.refusal = ""
        self.queue.forget(job.name)
        self.report(job, outcome(job, state))


def outcome(job: Job, state: SlurmState) -> Status:
    """Returns what became of a run whose job has ended."""
    if job.is_done:
        return Status("done", state.seconds)
    if state.word in CUT_OFF:
        return Status("interrupted", state.seconds, f"Slurm ended it: {state.word}.")
    if state.word == "OUT_OF_MEMORY":
        return Status("failed", state.seconds, "Slurm ended it: OUT_OF_MEMORY. Ask for more by --slurm.mem.")
    return Status("failed", state.seconds, job.error(0 if state.word == "COMPLETED" else 1))
