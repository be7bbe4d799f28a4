"""Brings a method and its data to the devices: processes, transforms, and what is computed once for each image."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from lightning import Fabric

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import FederatedData, MeasuresOtherClasses
from fedvlp.core.state import State


def set_up_method(
    fabric: Fabric, module: FederatedModule, num_threads: int | None, compile_towers: bool = False
) -> None:
    """Starts the processes, rounds the frozen towers, moves the method, and has its towers compiled.

    Args:
        fabric: devices and precision.
        module: the method.
        num_threads: CPU threads of PyTorch; its own choice if None.
        compile_towers: whether the towers are compiled.

    Raises:
        UserError: if the towers were rounded for another precision before.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    fabric.launch()
    is_half = fabric.strategy.precision.precision == "bf16-mixed"
    module.clip.cast_towers(torch.bfloat16 if is_half else torch.float32)  # before they are moved: half the bytes
    fabric.to_device(module)
    if compile_towers:
        module.clip.compile_towers()


def demand_determinism() -> None:
    """Lets PyTorch refuse operations that may give another result each time, as Lightning's ``deterministic`` does."""
    torch.use_deterministic_algorithms(True)
    # Without a fixed workspace cuBLAS chooses its way by the memory that is free.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def set_up_data(
    fabric: Fabric, module: FederatedModule, data: FederatedData, precision: str, serves_images: bool
) -> None:
    """Lets the data be read, split, and prepared for the method.

    Args:
        fabric: devices and precision, launched.
        module: the method.
        data: clients and splits.
        precision: of the frozen towers; what is prepared in another is another.
        serves_images: whether batches hold images even where the method has constants to prepare.

    Raises:
        UserError: if splits are of other classes than those that train, and the method can't tell others.
    """
    data.prepare_data()
    data.setup("fit")
    module.eval()
    data.bind(
        transform=module.transform,
        train_transform=module.train_transform,
        prepare=None if serves_images else _prepare(fabric, module),
        key=f"{module.precompute_key()}-{precision}",
        device=fabric.device,
        with_domains=module.needs_domains,
    )
    if isinstance(data, MeasuresOtherClasses):
        for class_names in data.other_classes:
            others = module.for_classes(class_names)
            prepare = None if serves_images else _prepare(fabric, others)
            data.bind_classes(class_names, prepare, f"{others.precompute_key()}-{precision}")
    if not serves_images:  # else each is read but once
        data.encode()


def _prepare(fabric: Fabric, module: FederatedModule) -> Callable[[torch.Tensor], State] | None:
    """Returns what computes once for each image all that a method prepares; None where that is nothing."""
    if not module.precomputes:
        return None

    def prepare(images: torch.Tensor) -> State:
        with torch.no_grad(), fabric.autocast():
            return {name: _compact(value) for name, value in module.precompute(images).items()}

    return prepare


def _compact(value: torch.Tensor) -> torch.Tensor:
    """Returns what was computed in half precision as it is, which takes half the memory, and all else in float32."""
    return value if value.dtype in (torch.bfloat16, torch.float16) else value.float()
