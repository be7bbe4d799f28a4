"""Runs a function in a process of its own, so that its peak memory and its warm-up are its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_subprocess(function: Callable[..., Result], **arguments: object) -> Result:
    """Returns what a function of a module returns, called in a fresh process with as many threads as here.

    A server process has imported PyTorch and the library already, so a fresh process starts within a moment. What the
    function prints is thrown away.

    Args:
        function: What to call; arguments and result must be picklable.
        **arguments: Its arguments.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.in_subprocess", "fedvlp.methods", "fedvlp.data", "fedvlp.federation"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_call, function, torch.get_num_threads(), arguments).result()


def _call(function: Callable[..., Result], threads: int, arguments: dict[str, object]) -> Result:
    torch.set_num_threads(threads)
    with open(os.devnull, "w") as devnull, redirect_stdout(devnull):
        return function(**arguments)
