"""A data set of noise in memory."""

from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlp.data import ArrayImages, FederatedDataModule, Images

CLASSES = ["cat", "dog", "owl"]


def to_tensor(image: Image.Image) -> Tensor:
    """Resize an image to 8 x 8 pixels in [0, 1]."""
    pixels = np.asarray(image.resize((8, 8)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class Arrays(FederatedDataModule):
    """Three domains of noise in memory."""

    counts: Mapping[str, tuple[int, ...]] = {"a": (10, 7, 5), "b": (4, 4, 4), "c": (6, 1, 2)}

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        domains: dict[str, Images] = {}
        for name, counts in self.counts.items():
            labels = np.repeat(np.arange(3), counts)
            pixels = np.random.default_rng(ord(name[0])).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
            domains[name] = ArrayImages(pixels, labels, [f"{name}/{i:03d}" for i in range(len(labels))])
        return domains, CLASSES
