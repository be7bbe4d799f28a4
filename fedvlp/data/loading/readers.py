"""PyTorch's loader, whose processes that read images are started again once if one of them is killed."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fedvlp.utils.errors import MachineError

DEATHS_THAT_END = 2  # in one pass
OF_IMAGE = "in DataLoader worker process"
"""What PyTorch's message has where a process reports an error of its own."""
SECONDS_TO_DIE = 60.0  # from the end of a connection to that of its process, which has its memory to free
OF_DEATH = "DataLoader worker (pid"
"""How PyTorch's message begins, whose type is RuntimeError as that of many others."""
HANDLERS = "torch.utils.data._utils.signal_handling"
Item = TypeVar("Item")
log = logging.getLogger(__name__)


class SteadyLoader(DataLoader[Item]):
    """A loader that goes on where it was when one of its reading processes is killed.

    What a pass gives is drawn before it begins, so new processes read what is left, and batches are bit for bit those
    of a pass without the fault.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yields the batches of one pass.

        Raises:
            MachineError: if a process is killed once more.
        """
        return super().__iter__() if not self.num_workers else self._read()

    def _read(self) -> Iterator[Any]:
        remaining = list(self.batch_sampler or ())
        deaths = 0
        while remaining:
            reader = DataLoader(
                self.dataset,
                batch_sampler=remaining,
                num_workers=self.num_workers,
                collate_fn=self.collate_fn,
                pin_memory=self.pin_memory,
                generator=self.generator,
            )
            count = 0
            batches = _batches(reader)
            try:
                for batch in batches:
                    count += 1
                    yield batch
            except (RuntimeError, EOFError, OSError) as error:
                if not _is_of_death(error, batches):
                    raise
                deaths += 1
                if deaths == DEATHS_THAT_END:
                    raise MachineError(
                        f"Processes that read images were killed twice ({error}): the machine has too little memory, "
                        f"or too little in /dev/shm. Lower data.num_workers, which is {self.num_workers}."
                    ) from error
                log.warning("%s; starting the processes that read images again.", error)
            remaining = remaining[count:]


def _batches(reader: DataLoader[Any]) -> Iterator[Any]:
    """Starts the processes of a loader; only asking for a batch tells of their death, not any other line of a program.

    PyTorch raises from the handler of a signal, wherever the program is, which may be amid the training of a client.
    """
    before = _child_handler()
    batches = iter(reader)
    after = _child_handler()
    if getattr(after, "__module__", "") == HANDLERS and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is after else before)
    return batches


def _is_of_death(error: Exception, batches: Any) -> bool:
    """Whether an error comes of a reading process that was killed, and not of an image.

    PyTorch says so if it was killed between two batches. If it had still to hand over the memory of one, the connection
    to it ends.
    """
    if isinstance(error, RuntimeError):
        return str(error).startswith(OF_DEATH)
    if OF_IMAGE in str(error) or not isinstance(error, (EOFError, ConnectionError, FileNotFoundError)):
        return False
    workers = {worker.sentinel: worker for worker in batches._workers}
    for sentinel in wait(list(workers), SECONDS_TO_DIE):
        workers[sentinel].join(SECONDS_TO_DIE)  # its files are closed before its exit code is known
    return any((worker.exitcode or 0) < 0 for worker in workers.values())


def _child_handler() -> Any:
    """Returns what is done when a process that this one started ends; None where there is no such signal."""
    return signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
