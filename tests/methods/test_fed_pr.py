"""FedPR: the null space of a client's steps, and its loss image by image."""

import pytest
import torch

from fedvlp import FedPR
from fedvlp.clip import zero_shot_text_features
from tests.helpers.slow import CLASSES, assert_same, begin, slow_cross_entropy

LABELS = torch.tensor([0, 2, 1])


def make(clip, **options):
    torch.manual_seed(0)
    module = FedPR(CLASSES, clip, **{"prompt_length": 3, "depth": 2, **options})
    with torch.no_grad():
        module.prompts.mul_(20)
    return module


def train(module, images, round, steps=3):
    """Train a client like the training loop, and return the prompts before and after."""
    begin(module, 0, round=round)
    before = module.prompts.detach().clone()
    optimizer = module.configure_optimizers()
    for index in range(steps):
        optimizer.zero_grad()
        loss = module.training_step((images, LABELS), index)
        loss.backward()
        optimizer.step()
        module.on_train_batch_end(loss, (images, LABELS), index)
    return before, module.prompts.detach().clone()


def projector(prompts, num_null):
    """Compute V_0 V_0^T of one block from the singular vectors of P^T P with the smallest singular values."""
    vectors = torch.linalg.svd(prompts.double().T @ prompts.double()).U
    smallest = vectors[:, len(vectors) - num_null :]
    return smallest @ smallest.T


def test_updates_stay_in_the_null_space(clip, images):
    """The update is not small, and the same steps without projection (first round) leave the null space."""
    before, after = train(make(clip), images, round=1)
    update = after - before
    assert update.norm() > 0.1
    torch.testing.assert_close(update @ before.mT, torch.zeros(2, 3, 3), atol=1e-5, rtol=0)
    before, free = train(make(clip), images, round=0)
    assert ((free - before) @ before.mT).abs().max() > 1e-2


@pytest.mark.parametrize(("null_share", "dropped"), [(0.8, 3), (0.985, 1), (1.0, 0)])
def test_each_step_of_adam_is_projected(clip, images, null_share, dropped):
    """Compare with Adam by hand, multiplying each step by V_0 V_0^T of W - dropped directions."""
    _, found = train(make(clip, null_share=null_share), images, round=2)
    module = make(clip)
    width = module.prompts.shape[-1]
    projectors = torch.stack([projector(block.detach(), width - dropped) for block in module.prompts])
    mean = torch.zeros_like(module.prompts)
    square = torch.zeros_like(module.prompts)
    for step in range(1, 4):
        (gradient,) = torch.autograd.grad(module.training_step((images, LABELS), 0), [module.prompts])
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        move = -0.004 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        with torch.no_grad():
            module.prompts.add_((move.double() @ projectors).float())
    torch.testing.assert_close(found, module.prompts.detach(), atol=1e-5, rtol=1e-5)


def test_loss_and_gradients_match_image_by_image(clip, images):
    module = make(clip, templates=2)
    texts = zero_shot_text_features(clip, CLASSES, 2)
    features = [module.visual(image[None], module.prompts).features[0] for image in images]
    expected = slow_cross_entropy(clip, features, texts, LABELS)
    assert_same(module.training_step((images, LABELS), 0), expected, [module.prompts])
