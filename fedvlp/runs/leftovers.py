"""What killed processes leave beside runs: temporary files and empty run folders."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedvlp.utils.files import is_of_living_process, remove_dead_temporaries, temporary_beside

RUN_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?")
SECONDS_TO_CLAIM = 60  # a process makes its run folder and claims it at once


@contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Marks a run folder as that of this process while the block runs, so that nobody takes it for left over."""
    claim = temporary_beside(run / "run")
    claim.touch()
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)


def is_claimed(run: Path) -> bool:
    """Whether a process trains this run: one of this machine that is alive, or one of another machine, who knows."""
    return any(is_of_living_process(path) for path in run.glob(".run.*.tmp"))


def sweep_leftovers(parent: Path) -> None:
    """Removes what dead processes of this machine left in the run folders of a folder.

    That is: temporary files, and run folders in which nothing is and that no living process claims. What can't be
    removed stays.

    Args:
        parent: the folder of the run folders; it need not exist.
    """
    for run in parent.glob("*/"):
        if not RUN_NAME.fullmatch(run.name):
            continue
        with suppress(OSError):  # also: another process removed it
            is_old = time.time() - run.stat().st_mtime > SECONDS_TO_CLAIM
            found = [remove_dead_temporaries(folder) for folder in (run, run / "checkpoints", run / "clients")]
            if is_old or any(found):
                run.rmdir()  # refuses a folder that holds anything
