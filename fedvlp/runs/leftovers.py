"""What killed processes leave beside runs: temporary files and empty run folders."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import remove_dead_temporaries
from fedvlp.utils.locks import is_locked, locked

RUN_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?")
LOCKED = "run"
"""What is locked in the place of a run folder; a file beside it says who holds it."""
SECONDS_TO_CLAIM = 60  # a process makes its run folder and claims it at once


@contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Keeps a run folder for this process while the block runs: no other trains in it or takes it for left over.

    The claim ends with the process, however that ends. What dead processes left in the folder is removed.

    Raises:
        UserError: if another process trains there.
        OSError: if nothing can be written there.
    """
    with ExitStack() as claim:
        try:
            claim.enter_context(locked(run / LOCKED, wait=False))
        except BlockingIOError as error:
            raise UserError(f"{run} is being trained by {error.strerror}. Wait for its end, or stop it.") from None
        _remove_temporaries(run)
        yield


def is_claimed(run: Path) -> bool:
    """Whether a process trains this run."""
    return is_locked(run / LOCKED)


def sweep_leftovers(parent: Path) -> None:
    """Removes what dead processes of this machine left in the run folders of a folder.

    That is: temporary files, and run folders in which nothing is. A run that a process has claimed is left alone, and
    what can't be removed stays.

    Args:
        parent: the folder of the run folders; it need not exist.
    """
    for run in parent.glob("*/"):
        if not RUN_NAME.fullmatch(run.name):
            continue
        with suppress(OSError):  # also: another process removed it
            changed = run.stat().st_mtime
            was_claimed = (run / f".{LOCKED}.lock").exists()
            if was_claimed:
                with locked(run / LOCKED, wait=False):  # raises if a process trains there
                    pass  # else the file of a dead one is gone now
            is_old = time.time() - changed > SECONDS_TO_CLAIM
            if _remove_temporaries(run) or was_claimed or is_old:
                run.rmdir()  # refuses a folder that holds anything


def _remove_temporaries(run: Path) -> int:
    """Removes the temporary files of dead processes in a run folder; returns how many."""
    return sum(remove_dead_temporaries(folder) for folder in (run, run / "checkpoints", run / "clients"))
