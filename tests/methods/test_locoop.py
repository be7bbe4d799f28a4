"""LoCoOp: its loss patch by patch, its limit cases, and independence of the order of classes and patches."""

import pytest
import torch

from fedvlp import LoCoOp, PromptFL, ZeroShotCLIP
from fedvlp.methods.transport import patch_features
from tests.helpers.slow import CLASSES, assert_step, slow_cross_entropy, slow_logits, slow_texts

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, classes=CLASSES, **options):
    torch.manual_seed(3)
    return LoCoOp(classes, clip, prompt_length=4, **options)


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_loss_matches_a_loop_over_patches(clip, images, top_k):
    module = make(clip, entropy_weight=0.4, top_k=top_k)
    texts = slow_texts(clip, module.prompt)
    entropies = []
    for patches, label in zip(patch_features(clip, images)[1], LABELS.tolist(), strict=True):
        for patch in patches:
            logs = slow_logits(clip, patch, texts).log_softmax(0)
            likeliest = sorted(range(len(CLASSES)), key=lambda index: -logs[index].item())[:top_k]
            if label not in likeliest:
                entropies.append(-sum(value.exp() * value for value in logs))
    assert 0 < len(entropies) < patches.shape[0] * len(images)
    expected = slow_cross_entropy(clip, clip.encode_image(images), texts, LABELS)
    expected = expected - 0.4 * sum(entropies) / len(entropies)
    assert_step(module, images, LABELS, expected)


def test_without_other_patches_it_is_promptfl(clip, images):
    """With all classes among the likeliest, no patch counts; the weight 0 ignores all patches."""
    plain = PromptFL(CLASSES, clip, prompt_length=4)
    plain.load_state(make(clip).shared_state())
    loss = plain.training_step((images, LABELS), 0)
    (wanted,) = torch.autograd.grad(loss, plain.prompt)
    for options in ({"top_k": 3}, {"entropy_weight": 0.0}):
        module = make(clip, **options)
        found = module.training_step((images, LABELS), 0)
        torch.testing.assert_close(found, loss, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.autograd.grad(found, module.prompt)[0], wanted, atol=1e-4, rtol=1e-4)


def test_a_fifth_of_the_classes_is_the_default(clip):
    assert [make(clip, [str(name) for name in range(count)]).top_k for count in (2, 7, 13)] == [1, 1, 3]


def test_the_order_of_classes_does_not_matter(clip, images):
    steps = []
    for order in ([0, 1, 2], [2, 0, 1]):
        module = make(clip, [CLASSES[index] for index in order])
        labels = torch.tensor([order.index(label) for label in LABELS.tolist()])
        loss = module.training_step((images, labels), 0)
        steps.append([loss, *torch.autograd.grad(loss, module.prompt)])
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_words_start_as_zero_shot_clip(clip, images):
    module = LoCoOp(CLASSES, clip, prompt_length=4, init_words="a photo of a")
    torch.testing.assert_close(module(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-3, rtol=1e-4)
    regions = module.region_logits(images)
    texts = torch.nn.functional.normalize(module.text(module.prompt), dim=-1)
    torch.testing.assert_close(
        regions, clip.logit_scale * patch_features(clip, images)[1] @ texts.T, atol=1e-3, rtol=1e-4
    )
