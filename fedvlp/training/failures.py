"""What happens when a client fails: its traceback is kept, its update is left out, and the others go on."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from fedvlp.core.state import Client
from fedvlp.utils.errors import MachineError
from fedvlp.utils.files import write_text
from fedvlp.utils.ranges import PositiveFloat, PositiveInt, Seconds, check_range

FOLDER = "failures"

DISK_FAULTS = {errno.ENOSPC, errno.EROFS, errno.EIO, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}

OnClientFailure = Literal["skip", "retry", "fail"]


@dataclass(frozen=True)
class FailurePolicy:
    """How many clients may fail, and what is done about those that do.

    Attributes:
        on_client_failure: ``skip`` leaves a client out for the rest of the round, ``retry`` lets it train once more
            before that, ``fail`` ends the run.
        min_clients: updates that a phase needs, at least 1; fewer end the run.
        max_update_norm: the largest norm of an update's difference to what is shared, above 0; None for any.
        client_timeout: seconds of a client's training in a phase, above 0, after which it has failed; None for any.
    """

    on_client_failure: OnClientFailure = "skip"
    min_clients: PositiveInt = 1
    max_update_norm: PositiveFloat | None = None
    client_timeout: Seconds | None = None

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_range("min_clients", self.min_clients, PositiveInt)
        check_range("max_update_norm", self.max_update_norm, PositiveFloat)
        check_range("client_timeout", self.client_timeout, Seconds)


class ClientError(Exception):
    """A client did something that its update can't be made of."""


@dataclass
class Failures:
    """Keeps what went wrong in this process.

    Args:
        policy: what is done about a client that fails.
        run: the run's folder, for the tracebacks; None to keep none.

    Attributes:
        errors: of the clients that failed in the running phase, by the client's id.
    """

    policy: FailurePolicy
    run: Path | None = None
    errors: dict[int, Exception] = field(default_factory=dict)

    def keep(self, round: int, phase: str, client: Client, error: Exception) -> str:
        """Writes a traceback into the run's folder, and returns what went wrong in a line.

        Args:
            round: number of finished rounds.
            phase: name of the phase.
            client: who failed.
            error: what was raised.
        """
        self.errors[client.id] = error
        reason = reason_of(error)
        if self.run is None or isinstance(error, ClientError):
            return reason
        path = self.run / FOLDER / f"round-{round + 1:05d}-{phase}-client-{client.id:06d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(traceback.format_exception(error)))
        return f"{reason} (traceback in {path})"


def reason_of(error: Exception) -> str:
    r"""Returns what a client did, in a line that follows on its name.

    >>> reason_of(ValueError("the file is gone\nand more"))
    'raised ValueError: the file is gone'
    """
    first_line = str(error).strip().split("\n")[0]
    # A ClientError says what the client did; where that was noticed does not matter.
    return first_line if isinstance(error, ClientError) else f"raised {type(error).__name__}: {first_line}"


def is_of_machine(error: Exception) -> bool:
    """Whether no client is to blame: a process was killed, or the disk is full or broken."""
    return isinstance(error, MachineError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device, or the machine, had no memory left."""
    no_memory_for_tensor = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or no_memory_for_tensor
