from __future__ import annotations

import pytest
import torch

from fedvlp.data.loading.loaders import DeviceLoader, image_loader

IMAGES = [(torch.full((3, 2, 2), float(label)), label) for label in range(3)]


@pytest.mark.parametrize(("device", "pinned"), [(None, False), ("cpu", False), ("mps", False), ("cuda:1", True)])
def test_only_batches_for_cuda_devices_are_pinned(device, pinned):
    loader = image_loader(IMAGES, 2, device=None if device is None else torch.device(device))
    assert loader.pin_memory is pinned


def test_batches_come_to_the_device():
    device = torch.device("meta")
    batches = list(DeviceLoader(image_loader(IMAGES, 2, device=device), device))
    assert [(pixels.shape, labels.device) for pixels, labels in batches] == [
        ((2, 3, 2, 2), device),
        ((1, 3, 2, 2), device),
    ]
