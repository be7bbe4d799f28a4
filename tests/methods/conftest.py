"""What tests of methods share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def images(clip):
    """Four images of noise, as the tiny CLIP takes them."""
    return torch.randn(4, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(1))
