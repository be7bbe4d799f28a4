"""Class probabilities of image files, as a CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, single_state
from fedvlp.utils.files import atomic_write


def predict_images(
    module: FederatedModule, fabric: Fabric, batches: Iterable[tuple[Sequence[Path], Tensor]], output: Path
) -> Predictions:
    """Writes path, class and every class's probability for each image, and returns what each was taken for.

    Args:
        module: the method, with the tensors that it is to predict with.
        fabric: device and precision.
        batches: paths of images with their pixels [B, 3, V, V], as the method's transform makes them.
        output: the CSV file; it appears whole or not at all.

    Returns:
        The predictions in the order of the batches, without labels: all are -1.
    """
    module.eval()
    names = list(module.hparams["class_names"])
    predicted: list[Tensor] = []
    confidence: list[Tensor] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as temporary, _open_table(temporary) as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class", *names])
        for paths, pixels in batches:
            probabilities = _probabilities(module, fabric, pixels)
            writer.writerows(_rows(paths, probabilities, names))
            predicted.append(probabilities.argmax(-1))
            confidence.append(probabilities.amax(-1))
    taken = torch.cat(predicted)
    return single_state(torch.full_like(taken, -1), taken, torch.cat(confidence))


def _open_table(path: Path) -> TextIO:
    """Opens a CSV for writing. Names of images may hold bytes that are not UTF-8, which are written as they are."""
    return open(path, "w", newline="", encoding="utf-8", errors="surrogateescape")


@torch.no_grad()
def _probabilities(module: FederatedModule, fabric: Fabric, pixels: Tensor) -> Tensor:
    """Returns [B, C]."""
    with fabric.autocast():
        return module.predict_step(fabric.to_device(pixels), 0).float().cpu()


def _rows(paths: Sequence[Path], probabilities: Tensor, names: Sequence[str]) -> Iterator[list[str]]:
    """Yields one row an image."""
    for path, row in zip(paths, probabilities, strict=True):
        yield [str(path), names[int(row.argmax())], *(f"{value:.6f}" for value in row.tolist())]
