"""Forks of the test process, which need not import anything again."""

import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedvlp.utils.errors import UserError

SECONDS = 120  # a generous limit before a test fails


def fork(task: Callable[..., Any], *arguments: Any, output: Path, **environment: str) -> BaseProcess:
    """Start a process that prints to a file and exits like the command line."""
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(task, arguments, output, environment), daemon=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test process are idle
        process.start()
    return process


@contextmanager
def ranks(task: Callable[[], Any], output: Path, count: int = 2) -> Iterator[list[BaseProcess]]:
    """Start the processes of one run like ``torchrun``. Each prints to ``<output>/<rank>.txt``.

    Args:
        task: Function that each process runs.
        output: Folder for the printed output.
        count: Number of processes.
    """
    output.mkdir(parents=True, exist_ok=True)
    for rank in range(count):
        (output / f"{rank}.txt").touch()
    common = {"NODE_RANK": "0", "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    started = [
        fork(task, output=output / f"{rank}.txt", LOCAL_RANK=str(rank), RANK=str(rank), **common)
        for rank in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def exit_code(process: BaseProcess) -> int | None:
    """Wait for a process and return its exit code."""
    process.join(SECONDS)
    return process.exitcode


def forget_package(*others: str) -> None:
    """Make a fork import the package again, and other packages, without the checks of types and shapes."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fedvlp", *others)]:
        del sys.modules[name]


def _run(task: Callable[..., Any], arguments: tuple[Any, ...], output: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with output.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    try:
        task(*arguments)
    except UserError as error:
        print(f"error: {error}")
        sys.exit(1)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
