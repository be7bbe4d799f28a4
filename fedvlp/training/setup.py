"""Setup of a run: devices and precision, checks of method and data, and moving both to the devices."""

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
from fedvlp.core.several_labels import has_negative_class
from fedvlp.core.state import State
from fedvlp.training.distributed import GlooStrategy
from fedvlp.utils.errors import UserError

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "auto"]
"""Lightning's names of precisions; ``auto`` chooses by the hardware."""
STRATEGIES = ("auto", "ddp")
"""Lightning's names of strategies that start several processes of the same program."""
FAST_DEV_RUN_NOTICE = (
    "fast_dev_run: 1 round, 1 step per client, 1 batch per split. Accuracies are meaningless, and nothing is saved."
)
log = logging.getLogger(__name__)


def choose_precision(precision: Precision, accelerator: str) -> tuple[str, str]:
    """Choose Lightning's name of a precision by the hardware, with the reason; no reason if the user chose."""
    if precision != "auto":
        return precision, ""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        # Older GPUs emulate bfloat16, which is slower than float32.
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "this GPU multiplies bfloat16"
        return "32-true", "this GPU does not multiply bfloat16"
    if accelerator != "cpu" and (accelerator != "auto" or torch.backends.mps.is_available()):
        return "32-true", "bfloat16 was tested only on CPUs and CUDA"
    instructions = bfloat16_instructions()
    if not instructions:
        return "32-true", "this processor has no instructions for bfloat16"
    return "bf16-mixed", f"this processor multiplies bfloat16 with {instructions}"


def bfloat16_instructions() -> str:
    """Get the processor's fast bfloat16 instructions, ``AMX`` or ``AVX512-BF16``; empty if it has none."""
    # These functions of PyTorch are private; a missing function counts as no.
    for kind, function in (("AMX", "_is_amx_tile_supported"), ("AVX512-BF16", "_is_avx512_bf16_supported")):
        if getattr(torch.cpu, function, bool)():
            return kind
    return ""


def make_fabric(*, devices: int | str | list[int], collective_timeout: float = 1800, **options: Any) -> Fabric:
    """Make Lightning's Fabric, with a time limit on waiting processes; raise UserError for an invalid option."""
    options["precision"], note = choose_precision(options["precision"], options["accelerator"])
    try:
        fabric = Fabric(devices=devices, **options)
        if isinstance(fabric.strategy, ParallelStrategy):
            if options["strategy"] not in STRATEGIES:
                raise ValueError(f"several processes need the strategy {' or '.join(STRATEGIES)}")
            fabric = Fabric(devices=devices, **{**options, "strategy": GlooStrategy(collective_timeout)})
    except Exception as error:  # Lightning raises many types for invalid options
        values = ", ".join(f"{name}={options[name]!r}" for name in ("accelerator", "strategy", "precision"))
        reason = " ".join(str(error).split())
        raise UserError(f"Lightning can't run with devices={devices!r}, {values}: {reason}") from error
    if note:
        fabric.print(f"Precision {options['precision']}: {note}.", flush=True)
    return fabric


def check_method(model: FederatedModule, rounds: int) -> None:
    """Raise UserError if the optimizer can't be used, or the method was built for fewer rounds."""
    # Methods with stages or schedules over rounds have an option for the number of rounds.
    method_rounds = model.hparams.get("rounds")
    if isinstance(method_rounds, int) and rounds > method_rounds:
        raise UserError(
            f"{type(model).__name__} was built for {method_rounds} rounds, but the federation has {rounds}. "
            "Use the same number for both."
        )
    if rounds == 0 or model.make_optimizer is None:
        return
    try:
        optimizer = model.make_optimizer([nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"The optimizer can't be built: {error}. Correct --model.optimizer.") from error
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{type(optimizer).__name__} computes the loss several times per step, but clients compute it once. Use "
            "SGD, Adam or AdamW."
        )


def check_writable(parent: Path) -> None:
    """Raise UserError if the user can't create a folder at this path, without creating it."""
    # Checked early, because encoding the images may take minutes.
    nearest = next(folder for folder in (parent.absolute(), *parent.absolute().parents) if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "is read-only" if nearest.is_dir() else "is not a folder"
        raise UserError(f"Runs can't be written to {parent}: {nearest} {problem}. Choose another default_root_dir.")


def check_data(data: FederatedData, cohort_size: int | None) -> None:
    """Warn if the cohort is larger than the number of clients, or if there are no validation images."""
    clients = len(data.clients)
    if cohort_size is not None and cohort_size > clients:
        log.warning("cohort_size is %d, but there are only %d clients. All of them train.", cohort_size, clients)
    if not any(split.role == "validation" for split in data.evaluation_splits()):
        log.warning(
            "There are no validation images, because no class of a source domain has two or more images. The last "
            "round is reported instead of the best one on source validation."
        )


def set_up_method(
    fabric: Fabric, module: FederatedModule, num_threads: int | None, deterministic: bool = False
) -> None:
    """Start the processes, round the frozen towers, and move the method to the device."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # By default cuDNN rounds float32 to TF32, so patch embeddings would differ between GPU and CPU.
    torch.backends.cudnn.allow_tf32 = False
    if deterministic:
        torch.use_deterministic_algorithms(True)
        # Without a fixed workspace cuBLAS chooses its algorithm by the free memory.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # After this line there may be several processes.
    fabric.launch()
    is_half = fabric.strategy.precision.precision == "bf16-mixed"
    # Before moving the towers, so that only half the bytes are copied.
    module.clip.cast_towers(torch.bfloat16 if is_half else torch.float32)
    fabric.to_device(module)


def set_up_data(
    fabric: Fabric, module: FederatedModule, data: FederatedData, precision: str, serves_images: bool
) -> None:
    """Read and split the data, and compute the method's per-image constants once, in this ``precision``.

    With ``serves_images`` batches hold images, and nothing is computed in advance. Raises UserError if an evaluation
    split has classes that the method can't classify.
    """
    # Lightning's hooks in Lightning's order, so that data modules also work with its Trainer.
    data.prepare_data()
    data.setup("fit")
    _check_labels(module, data)
    module.eval()
    data.bind(
        transform=module.transform,
        train_transform=module.train_transform,
        precompute=None if serves_images else _precompute(fabric, module),
        key=f"{module.precompute_key()}-{precision}",
        device=fabric.device,
        include_domains=module.needs_domains,
    )
    # Fail before images are encoded rather than in the first evaluation.
    for class_names in {split.class_names for split in data.evaluation_splits()} - {()}:
        module.for_classes(class_names)
    if not serves_images:
        data.encode()


def _check_labels(module: FederatedModule, data: FederatedData) -> None:
    has_several = bool(getattr(data, "several_labels", False))
    if has_several and not module.supports_several_labels:
        raise UserError(
            f"{type(module).__name__} does not support several labels per image"
            f"{' with these options' if type(module).supports_several_labels else ''}. These methods do: "
            f"{', '.join(sorted(_with_several_labels(FederatedModule)))}."
        )
    if not has_several and not module.supports_one_label:
        raise UserError(
            f"{type(module).__name__} needs images with several labels, but these have one label each. Choose another "
            "method, such as PromptFL, or other data, such as IconScenes."
        )
    if has_several != has_negative_class(module.hparams.get("class_names", ())):
        raise UserError(
            f"Expected {type(module).__name__} for {'several labels' if has_several else 'one label'} per image; its "
            "class names are for the other kind of data. Build it with class_names=data.method_names."
        )


def _with_several_labels(kind: type[FederatedModule]) -> set[str]:
    names = {kind.__name__} if kind.supports_several_labels else set()
    return names.union(*map(_with_several_labels, kind.__subclasses__()))


def _precompute(fabric: Fabric, module: FederatedModule) -> Precompute | None:
    if not module.precomputes:
        return None

    @torch.no_grad()
    def precompute(images: torch.Tensor) -> State:
        with fabric.autocast():
            computed = module.precompute(images)
        # Half-precision results of the towers stay in half precision to save memory.
        halves = (torch.bfloat16, torch.float16)
        return {name: value if value.dtype in halves else value.float() for name, value in computed.items()}

    return precompute


def shorten_splits(data: FederatedData) -> FederatedData:
    """Copy a data module so that it evaluates only on the first batch of each split. The images are shared."""

    def shorten(splits: Iterable[EvaluationSplit]) -> list[EvaluationSplit]:
        return [replace(split, loader=list(islice(iter(split.loader), 1)), groups=None) for split in splits]

    short_data = copy.copy(data)
    measured = shorten(data.evaluation_splits())
    vars(short_data)["evaluation_splits"] = lambda: measured
    if isinstance(data, HasOutOfDistribution):
        others = shorten(data.out_of_distribution_splits())
        vars(short_data)["out_of_distribution_splits"] = lambda: others
    return short_data
