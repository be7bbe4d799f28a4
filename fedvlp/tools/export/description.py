"""What whoever runs an exported file has to know: the classes, and how an image becomes the graph's input."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.version import __version__

NAME = "fedvlp.json"
"""The description's name among the extra files of TorchScript and torch.export."""


def describe(method: FederatedModule, file_format: str) -> dict[str, Any]:
    """Returns the description, of plain values that JSON can hold.

    Its ``preprocess`` has the size in pixels, how an image is brought to it (``resize_mode`` and ``interpolation``,
    then the centre is cut out), and the mean and deviation of each colour, of values in [0, 1].
    """
    transform = asdict(method.clip.preprocess_options)  # type: ignore[attr-defined]
    return {
        "format": file_format,
        "fedvlp": __version__,
        "method": type(method).__name__,
        "clip": str(method.hparams["clip"]["name"]),
        "class_names": [str(name) for name in method.hparams["class_names"]],
        "input": {"name": "images", "type": "float32", "shape": ["batch", 3, *_pixels(method)]},
        "output": {"name": "logits", "type": "float32", "shape": ["batch", len(method.hparams["class_names"])]},
        "preprocess": json.loads(json.dumps({**transform, "size": _pixels(method)[0]})),
    }


def example_images(method: FederatedModule, count: int, seed: int = 0) -> Float[Tensor, "B 3 V V"]:
    """Returns images of random pixels, with the mean and the deviation that the transform gives to photographs.

    Args:
        method: whose transform it is.
        count: how many.
        seed: another one gives other images.
    """
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, *_pixels(method)), generator=generator) / 255
    options = method.clip.preprocess_options  # type: ignore[attr-defined]
    return (pixels - torch.tensor(options.mean)[:, None, None]) / torch.tensor(options.std)[:, None, None]


def _pixels(method: FederatedModule) -> tuple[int, int]:
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    return size, size
