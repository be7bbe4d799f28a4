"""Shows a method every domain's images, for what it says of its own workings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.diagnosis import Diagnosis
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import EvaluationSplit, FederatedData
from fedvlp.core.roles import OF_CLIENTS
from fedvlp.utils.errors import UserError


@torch.no_grad()
def inspect_method(module: FederatedModule, data: FederatedData, fabric: Fabric) -> Diagnosis:
    """Returns what the method says on the evaluation images of every domain; data must serve images.

    Raises:
        UserError: if the method has nothing to say.
    """
    module.eval()
    domains = list(dict.fromkeys(split.domain for split in _splits(data)))
    with fabric.autocast():
        diagnosis = module.diagnose({domain: _images(data, fabric, domain) for domain in domains})
    if diagnosis is None:
        raise UserError(f"{type(module).__name__} has no diagnosis. A method has one if it overrides `diagnose`.")
    return diagnosis


def _splits(data: FederatedData) -> list[EvaluationSplit]:
    """Returns the evaluation splits of domains, and not those of clients."""
    return [split for split in data.evaluation_splits() if split.role not in OF_CLIENTS]


def _images(data: FederatedData, fabric: Fabric, domain: str) -> Iterator[Tensor]:
    """Yields a domain's images in batches, from all of its evaluation splits."""
    for split in _splits(data):
        if split.domain == domain:
            for images, _ in split.loader:
                if isinstance(images, dict):
                    raise RuntimeError("The data serve prepared constants; bind them without `prepare` first.")
                yield fabric.to_device(images)
