"""What tests of methods share."""

import pytest


@pytest.fixture
def images(request, clip):
    """Images of noise, as the tiny CLIP takes them: one for each of the module's LABELS, or four."""
    import torch

    count = len(getattr(request.module, "LABELS", range(4)))
    return torch.randn(count, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(1))
