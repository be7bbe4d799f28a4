"""Before training: devices and precision, checks of method and data, and bringing both to the devices."""

import copy
import inspect
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import Fabric
from lightning.fabric.strategies.parallel import ParallelStrategy
from torch import nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import EvaluationSplit, FederatedData, HasOutOfDistribution, Precompute
from fedvlp.core.state import State
from fedvlp.training.distributed import GlooStrategy
from fedvlp.utils.errors import UserError

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "auto"]
"""Lightning's names of arithmetics; ``auto`` is the hardware's choice."""
STRATEGIES = ("auto", "ddp")
"""Lightning's names of what starts several processes, each of which runs the same program."""
FAST_DEV_RUN_NOTICE = (
    "fast_dev_run: 1 round, 1 step of each client, 1 batch of each split; no accuracy means anything, nothing is kept"
)
log = logging.getLogger(__name__)


def choose_precision(precision: Precision, accelerator: str) -> tuple[str, str]:
    """Choose Lightning's name of an arithmetic by the hardware alone, with the reason; none if the user chose."""
    if precision != "auto":
        return precision, ""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        # Older GPUs emulate bfloat16, which is slower than float32.
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "this GPU multiplies bfloat16"
        return "32-true", "this GPU does not multiply bfloat16"
    if accelerator != "cpu" and (accelerator != "auto" or torch.backends.mps.is_available()):
        return "32-true", "bfloat16 was tried on processors and CUDA alone"
    units = bfloat16_units()
    if not units:
        return "32-true", "this processor has no units for bfloat16"
    return "bf16-mixed", f"this processor multiplies bfloat16 by {units}"


def bfloat16_units() -> str:
    """Return by what the processor multiplies bfloat16, ``AMX`` or ``AVX512-BF16``; empty if that is slow."""
    # PyTorch's questions are private; where one is missing, the answer counts as no.
    for kind, question in (("AMX", "_is_amx_tile_supported"), ("AVX512-BF16", "_is_avx512_bf16_supported")):
        if getattr(torch.cpu, question, bool)():
            return kind
    return ""


def make_fabric(*, devices: int | str | list[int], collective_timeout: float = 1800, **options: Any) -> Fabric:
    """Make Lightning's Fabric, whose processes wait for each other; raise UserError if it refuses an option."""
    options["precision"], why = choose_precision(options["precision"], options["accelerator"])
    try:
        fabric = Fabric(devices=devices, **options)
        if isinstance(fabric.strategy, ParallelStrategy):
            if options["strategy"] not in STRATEGIES:
                raise ValueError(f"several processes are started by {' or '.join(STRATEGIES)} alone")
            fabric = Fabric(devices=devices, **{**options, "strategy": GlooStrategy(collective_timeout)})
    except Exception as error:  # Lightning raises nearly every type for an option that it refuses
        values = ", ".join(f"{name}={options[name]!r}" for name in ("accelerator", "strategy", "precision"))
        reason = " ".join(str(error).split())
        raise UserError(f"Lightning can't run with devices={devices!r}, {values}: {reason}") from error
    if why:
        fabric.print(f"Precision {options['precision']}: {why}.", flush=True)
    return fabric


def check_method(model: FederatedModule, rounds: int) -> None:
    """Raise UserError if the optimizer can't be used, or the method was made for fewer rounds."""
    # Methods whose stages or schedules depend on the number of rounds take it as an option.
    method_rounds = model.hparams.get("rounds")
    if isinstance(method_rounds, int) and rounds > method_rounds:
        raise UserError(
            f"{type(model).__name__} was made for {method_rounds} rounds, but the federation has {rounds}. "
            "Give both the same number."
        )
    if rounds == 0 or model.make_optimizer is None:
        return
    try:
        optimizer = model.make_optimizer([nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"The optimizer can't be made: {error}. Correct --model.optimizer.") from error
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{type(optimizer).__name__} computes the loss several times in a step, which a client does not. Take SGD, "
            "Adam or AdamW."
        )


def check_writable(parent: Path) -> None:
    """Raise UserError if a folder can't be made, as this user may not write there; do not make it."""
    # Found out now, and not after the images were encoded.
    nearest = next(folder for folder in (parent.absolute(), *parent.absolute().parents) if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "is read-only" if nearest.is_dir() else "is no folder"
        raise UserError(f"Runs can't be written to {parent}: {nearest} {problem}. Choose another default_root_dir.")


def check_data(data: FederatedData, cohort_size: int | None) -> None:
    """Warn of a cohort of too many, and where no image validates."""
    clients = len(data.clients)
    if cohort_size is not None and cohort_size > clients:
        log.warning("cohort_size is %d, but all %d clients there are train in a round.", cohort_size, clients)
    if not any(split.role == "validation" for split in data.evaluation_splits()):
        log.warning(
            "No class of a source domain has two images or more, so none validates: no round is the best on source "
            "validation, and the last one is reported."
        )


def set_up_method(
    fabric: Fabric, module: FederatedModule, num_threads: int | None, deterministic: bool = False
) -> None:
    """Start the processes, round the frozen towers, and move the method to the device."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # Of float32's products cuDNN alone rounds to TF32 unless told: patches shall be embedded on a GPU as on a CPU.
    torch.backends.cudnn.allow_tf32 = False
    if deterministic:
        torch.use_deterministic_algorithms(True)
        # Without a fixed workspace cuBLAS chooses its algorithm by the memory that is free.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # From here on there may be several processes.
    fabric.launch()
    is_half = fabric.strategy.precision.precision == "bf16-mixed"
    # Before they are moved, so that half the bytes are.
    module.clip.cast_towers(torch.bfloat16 if is_half else torch.float32)
    fabric.to_device(module)


def set_up_data(
    fabric: Fabric, module: FederatedModule, data: FederatedData, precision: str, serves_images: bool
) -> None:
    """Read and split the data, and compute the method's per-image constants once, by ``precision``.

    With ``serves_images``, batches hold images, and nothing is computed in advance. Raises UserError if classes are
    tested that the method can't classify.
    """
    # Lightning's two hooks, in its order: a data module works with its Trainer, too.
    data.prepare_data()
    data.setup("fit")
    module.eval()
    data.bind(
        transform=module.transform,
        train_transform=module.train_transform,
        precompute=None if serves_images else _precompute(fabric, module),
        key=f"{module.precompute_key()}-{precision}",
        device=fabric.device,
        with_domains=module.needs_domains,
    )
    # Fail before images are encoded rather than in the first evaluation.
    for class_names in {split.class_names for split in data.evaluation_splits()} - {()}:
        module.for_classes(class_names)
    if not serves_images:
        data.encode()


def _precompute(fabric: Fabric, module: FederatedModule) -> Precompute | None:
    """What computes once for each image all that a method precomputes; None where that is nothing."""
    if not module.precomputes:
        return None

    @torch.no_grad()
    def precompute(images: torch.Tensor) -> State:
        with fabric.autocast():
            computed = module.precompute(images)
        # What the towers computed in half precision is kept so, in half the memory.
        halves = (torch.bfloat16, torch.float16)
        return {name: value if value.dtype in halves else value.float() for name, value in computed.items()}

    return precompute


def with_short_splits(data: FederatedData) -> FederatedData:
    """Return a copy of a data module that evaluates on the first batch of each split; what was read is shared."""

    def shorten(splits: Iterable[EvaluationSplit]) -> list[EvaluationSplit]:
        return [replace(split, loader=list(islice(iter(split.loader), 1))) for split in splits]

    short_data = copy.copy(data)
    measured = shorten(data.evaluation_splits())
    vars(short_data)["evaluation_splits"] = lambda: measured
    if isinstance(data, HasOutOfDistribution):
        others = shorten(data.out_of_distribution_splits())
        vars(short_data)["out_of_distribution_splits"] = lambda: others
    return short_data
