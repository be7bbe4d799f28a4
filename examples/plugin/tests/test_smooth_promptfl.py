import torch

from fedvlp import PromptFL
from fedvlp.testing import check_method
from my_prompts.smooth_promptfl import SmoothPromptFL

CLASSES = ["circle", "square", "star"]


def test_contract():
    check_method(SmoothPromptFL, config="smooth_promptfl")


def losses(smoothing: float) -> tuple[float, float]:
    """Compute the losses of the method and of PromptFL for the same batch."""
    method = SmoothPromptFL(smoothing, class_names=CLASSES, clip="fedvlp-tiny")
    plain = PromptFL(CLASSES, clip="fedvlp-tiny")
    plain.load_state(method.shared_state())
    size = method.clip.image_size
    batch = (torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0]))
    return method.training_step(batch, 0).item(), plain.training_step(batch, 0).item()


def test_without_smoothing_it_is_promptfl():
    own, plain = losses(0.0)
    assert own == plain


def test_smoothing_changes_the_loss():
    own, plain = losses(0.5)
    assert own != plain
