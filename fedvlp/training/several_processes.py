"""Lightning's DDP strategy, with waits that can be broken off and that end when a process does not answer."""

from __future__ import annotations

import atexit
import pickle
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor

from fedvlp.training.roll_call import silent_ranks
from fedvlp.utils.errors import MachineError

SHORTEST_PAUSE = 1e-4  # seconds between two looks at whether others have answered
LONGEST_PAUSE = 0.02
SECONDS_TO_END = 5.0
"""How long processes that this one started may go on once it is at its end."""
SECONDS_TO_TELL = 0.5
"""Likewise, once one of them is known not to answer; those that do have noticed by then, and say so."""

Value = TypeVar("Value")


class SeveralProcesses(DDPStrategy):
    """Starts the processes as Lightning's ``ddp`` does, and lets them exchange what they have in the CPU's memory.

    A plain collective waits in C++, where Ctrl-C is not heard, and says nothing of who is missing. Here Python waits
    for collectives that run beside it.

    Args:
        limit: seconds that a process waits for what others send; above 0.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()  # whose own limit is for the start, when some may still import what others have
        self.limit = limit
        self.group: Any = None
        self.started: list[subprocess.Popen[bytes]] = []

    def setup_environment(self) -> None:
        """Lets this process meet the others.

        Raises:
            MachineError: if they do not come.
        """
        started = getattr(self.launcher, "procs", [])
        try:
            super().setup_environment()
            self.group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=self.limit))
        except RuntimeError as error:
            raise MachineError(f"The {self.world_size} processes did not meet: {_first_line(error)}.") from error
        self.started = list(started)
        atexit.register(end_processes, self.started)
        # Lightning's own watch over them ends this process by SIGKILL, without a word, and sees nothing from here on.
        started.clear()

    def gather(self, value: Value) -> list[Value]:
        """Returns the values of all processes, by rank.

        Raises:
            MachineError: if one does not answer.
        """
        content = _packed(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        own = torch.tensor([len(content)])
        self._run(lambda: torch.distributed.all_gather(sizes, own, group=self.group, async_op=True))
        values: list[Value] = []
        for rank, size in enumerate(sizes):
            buffer = content if rank == self.global_rank else torch.empty(int(size), dtype=torch.uint8)
            self.broadcast_bytes(buffer, rank)
            values.append(value if rank == self.global_rank else pickle.loads(buffer.numpy().tobytes()))
        return values

    def broadcast(self, obj: Value, src: int = 0) -> Value:
        """Returns the value of one process.

        Raises:
            MachineError: if it does not answer.
        """
        is_sender = self.global_rank == src
        content = _packed(obj) if is_sender else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(content)])
        self._run(lambda: torch.distributed.broadcast(size, src, group=self.group, async_op=True))
        buffer = content if is_sender else torch.empty(int(size), dtype=torch.uint8)
        self.broadcast_bytes(buffer, src)
        received: Value = obj if is_sender else pickle.loads(buffer.numpy().tobytes())
        return received

    def broadcast_bytes(self, buffer: Tensor, rank: int) -> None:
        """Fills a buffer [bytes], uint8 on the CPU, with that of one process.

        Raises:
            MachineError: if it does not answer.
        """
        self._run(lambda: torch.distributed.broadcast(buffer, rank, group=self.group, async_op=True))

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits until all processes are here."""
        self.gather(None)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns whether all processes decide so, or any."""
        decisions = self.gather(bool(decision))
        return min(decisions) if all else max(decisions)

    def _run(self, start: Any) -> None:
        """Starts a collective and waits for its end, where signals are heard."""
        pause = SHORTEST_PAUSE
        try:
            work = start()
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> MachineError:
        """Returns the error that says which processes do not answer, once the others know it, too."""
        environment = self.cluster_environment
        address = "" if environment is None else environment.main_address
        port = 0 if environment is None else environment.main_port
        silent = silent_ranks(address, port, self.global_rank, self.world_size)
        end_processes(self.started, SECONDS_TO_TELL)
        ranks = " and ".join(str(rank) for rank in silent)
        reason = f"No answer from rank {ranks} of {self.world_size} processes: ended, stopped, or busy for more than "
        reason += f"runtime.collective_timeout={self.limit:g} seconds"
        if not silent:
            reason = f"The connection between the {self.world_size} processes broke ({_first_line(error)})"
        return MachineError(f"{reason}. The last checkpoint is whole; go on with --ckpt_path last.")


def end_processes(started: Sequence[subprocess.Popen[bytes]], seconds: float = SECONDS_TO_END) -> None:
    """Waits for processes, and kills those that do not end: they would train for nobody."""
    end = time.monotonic() + seconds
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
    for process in started:
        if process.poll() is None:
            process.kill()  # which ends a stopped one, too
            process.wait()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _packed(value: Any) -> Tensor:
    """Returns a value as bytes; only processes of one run read them."""
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
