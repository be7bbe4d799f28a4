"""Shows a method every domain's images, for what it says of its own workings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.diagnosis import Diagnosis
from fedvlp.errors import UserError
from fedvlp.module import FederatedModule
from fedvlp.protocols import FederatedData
from fedvlp.run_folder import find_checkpoints


@torch.no_grad()
def inspect_method(module: FederatedModule, data: FederatedData, fabric: Fabric) -> Diagnosis:
    """Returns what the method says on the evaluation images of every domain; data must serve images.

    Raises:
        UserError: if the method has nothing to say.
    """
    module.eval()
    domains = list(dict.fromkeys(split.domain for split in data.evaluation_splits()))
    with fabric.autocast():
        diagnosis = module.diagnose({domain: _images(data, fabric, domain) for domain in domains})
    if diagnosis is None:
        raise UserError(f"{type(module).__name__} has no diagnosis. A method has one if it overrides `diagnose`.")
    return diagnosis


def run_of(trained: Path) -> Path:
    """Returns the run folder in which trained tensors lie, from a file in it or a folder above it."""
    if trained.is_file():
        return trained.parent.parent if trained.parent.name == "checkpoints" else trained.parent
    found = find_checkpoints(trained)
    return found[0].parent.parent if found else trained


def _images(data: FederatedData, fabric: Fabric, domain: str) -> Iterator[Tensor]:
    """Yields a domain's images in batches, from all of its evaluation splits."""
    for split in data.evaluation_splits():
        if split.domain == domain:
            for images, _ in split.loader:
                if isinstance(images, dict):
                    raise RuntimeError("The data serve prepared constants; bind them without `prepare` first.")
                yield fabric.to_device(images)
