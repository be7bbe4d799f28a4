from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import to_tensor

from fedvlp.data import ArrayImages
from fedvlp.data.loaders import DeviceLoader, ImageDataset, image_loader


def black_images(count=3):
    images = ArrayImages(np.zeros((count, 2, 2, 3), np.uint8), range(count))
    return ImageDataset([(images, np.arange(count))], to_tensor)


@pytest.mark.parametrize(("device", "pinned"), [(None, False), ("cpu", False), ("mps", False), ("cuda:1", True)])
def test_only_batches_for_cuda_devices_are_pinned(device, pinned):
    loader = image_loader(black_images(), 2, device=None if device is None else torch.device(device))
    assert loader.pin_memory is pinned


def test_batches_come_to_the_device():
    device = torch.device("meta")
    batches = list(DeviceLoader(image_loader(black_images(), 2, device=device), device))
    assert [(pixels.shape, labels.device) for pixels, labels in batches] == [
        ((2, 3, 2, 2), device),
        ((1, 3, 2, 2), device),
    ]
