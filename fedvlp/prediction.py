"""Class probabilities of image files, as a CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from lightning import Fabric
from torch import Tensor

from fedvlp.data.images import ImageFiles, image_paths
from fedvlp.module import FederatedModule


def predict_images(
    module: FederatedModule, fabric: Fabric, images: Sequence[str], output: Path, batch_size: int = 64
) -> Path:
    """Writes path, class and every class's probability for each image, and returns the file.

    Raises:
        UserError: if a path holds no image or an image can't be read; no file is written then.
    """
    module.eval()
    files = ImageFiles(image_paths(images), module.transform, batch_size)
    names = list(module.hparams["class_names"])
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "class", *names])
            for paths, pixels in files:
                writer.writerows(_rows(paths, _probabilities(module, fabric, pixels), names))
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    fabric.print(f"{len(files.paths)} images -> {output}")
    return output


@torch.no_grad()
def _probabilities(module: FederatedModule, fabric: Fabric, pixels: Tensor) -> Tensor:
    """Returns [B, C]."""
    with fabric.autocast():
        return module.predict_step(fabric.to_device(pixels), 0).float().cpu()


def _rows(paths: Sequence[Path], probabilities: Tensor, names: Sequence[str]) -> Iterator[list[str]]:
    """Yields one row an image."""
    for path, row in zip(paths, probabilities, strict=True):
        yield [str(path), names[int(row.argmax())], *(f"{value:.6f}" for value in row.tolist())]
