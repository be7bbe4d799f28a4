"""Fixtures for tests of methods."""

import pytest


@pytest.fixture
def images(request, clip):
    """Draw noise images for the tiny CLIP: one for each of the module's LABELS, or four."""
    import torch

    count = len(getattr(request.module, "LABELS", range(4)))
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(1))
