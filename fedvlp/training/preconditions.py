"""What a federation can know before it trains, and refuses or says then: devices, optimizer, clients, splits."""

from __future__ import annotations

import inspect
import logging
import math
import os
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.strategies.parallel import ParallelStrategy
from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import FederatedData
from fedvlp.training.distributed import GlooStrategy
from fedvlp.utils.errors import UserError

MOST_DEVICES = 4096
STRATEGIES = ("auto", "ddp")
"""Lightning's names of what starts several processes, each of which runs the same program."""
log = logging.getLogger(__name__)


def make_fabric(*, devices: int | str | list[int], collective_timeout: float = 1800, **options: Any) -> Fabric:
    """Returns Lightning's Fabric, whose processes wait for each other for so many seconds.

    Raises:
        UserError: if there are no such devices, or Lightning refuses an option.
    """
    count = len(devices) if isinstance(devices, list) else devices
    number = int(count) if str(count).strip().lstrip("-").isdecimal() else None
    if number is not None and not (number == -1 or 1 <= number <= MOST_DEVICES):
        raise UserError(f"Expected devices to be at least 1, or -1 or auto for all, got {devices!r}.")
    try:
        fabric = Fabric(devices=devices, **options)
        if not isinstance(fabric.strategy, ParallelStrategy):
            return fabric
        if options["strategy"] not in STRATEGIES:
            raise ValueError(f"several processes are started by {' or '.join(STRATEGIES)} alone")
        return Fabric(devices=devices, **{**options, "strategy": GlooStrategy(collective_timeout)})
    except Exception as error:  # Lightning raises nearly every type for an option that it refuses
        asked = ", ".join(f"{name}={options[name]!r}" for name in ("accelerator", "strategy", "precision"))
        reason = " ".join(str(error).split())
        raise UserError(f"Lightning can't run with devices={devices!r}, {asked}: {reason}") from error


def check_before_data(model: FederatedModule, rounds: int, parent: Path) -> None:
    """Checks what is known before an image is read.

    Args:
        model: the method.
        rounds: of the federation.
        parent: the folder below which the run will write.

    Raises:
        UserError: for what training would stumble over.
    """
    check_writable(parent)
    if rounds > 0:
        check_optimizer(model)
    of_method = model.hparams.get("rounds")
    if isinstance(of_method, int) and rounds > of_method:
        raise UserError(
            f"{type(model).__name__} was made for {of_method} rounds, but the federation has {rounds}. "
            "Give both the same number."
        )


def check_after_data(data: FederatedData, cohort_size: int | None, patience: int | None) -> None:
    """Checks what is known once the images are split; warns of a cohort of too many, and where no image validates.

    Raises:
        UserError: if training is to stop by what nobody measures.
    """
    clients = len(data.clients)
    if cohort_size is not None and cohort_size > clients:
        log.warning("cohort_size is %d, but all %d clients there are train in a round.", cohort_size, clients)
    if any(split.role == "validation" for split in data.evaluation_splits()):
        return
    lacking = "No class of a source domain has two images or more, so none validates"
    if patience is not None:
        raise UserError(f"{lacking} and patience={patience} would never stop a run. Leave it out.")
    log.warning("%s: no round is the best on source validation, and the last one is reported.", lacking)


def check_writable(parent: Path) -> None:
    """Checks that a folder can be made, without making it.

    Raises:
        UserError: if something else is in its place, or this user may not write there.
    """
    known = next(folder for folder in (parent.absolute(), *parent.absolute().parents) if os.path.lexists(folder))
    if not known.is_dir():
        raise UserError(f"Runs can't be written to {parent}: {known} is no folder. Choose another default_root_dir.")
    if not os.access(known, os.W_OK | os.X_OK):
        raise UserError(f"Runs can't be written to {parent}: {known} is read-only. Choose another default_root_dir.")


def check_optimizer(model: FederatedModule) -> None:
    """Makes an optimizer once, as each client will.

    Raises:
        UserError: if it can't be made, has a setting that is no number, or needs to compute the loss itself.
    """
    if model.make_optimizer is None:
        return
    try:
        optimizer = model.make_optimizer([nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"The optimizer can't be made: {error}. Correct --model.optimizer.") from error
    name = type(optimizer).__name__
    for setting, value in optimizer.defaults.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"Expected {setting} of {name} to be a finite number, got {value}.")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{name} computes the loss several times in a step, which a client does not. Take SGD, Adam or AdamW."
        )
