"""Calls of functions in a separate process, so that peak memory and warm-up are independent."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_subprocess(function: Callable[..., Result], **arguments: object) -> Result:
    """Call a module-level function in a fresh process with as many threads as this one, and return its result.

    A server process has already imported PyTorch and the library, so a fresh process starts quickly. The output of the
    function is discarded. With ``device="cuda"`` the function runs in this process: PyTorch counts a GPU's memory by
    itself, and starting CUDA takes longer than most measurements.

    Args:
        function: Module-level function; arguments and result must be picklable.
        **arguments: Its arguments.
    """
    if arguments.get("device") == "cuda":
        gc.collect()
        return _call(function, torch.get_num_threads(), arguments)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.in_subprocess", "fedvlp.methods", "fedvlp.data", "fedvlp.federation"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_call, function, torch.get_num_threads(), arguments).result()


def _call(function: Callable[..., Result], threads: int, arguments: dict[str, object]) -> Result:
    torch.set_num_threads(threads)
    with open(os.devnull, "w") as devnull, redirect_stdout(devnull):
        return function(**arguments)
