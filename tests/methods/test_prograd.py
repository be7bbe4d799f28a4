"""ProGrad: its gradient number by number, its initial prompt, and its limit cases."""

import pytest
import torch

from fedvlp import ProGrad, PromptFL, ZeroShotCLIP
from fedvlp.methods.prograd import aligned_gradient

CLASSES = ["red circle", "star", "big square"]


def make(clip, init_words=None, **options):
    torch.manual_seed(3)
    return ProGrad(CLASSES, clip, prompt_length=4, init_words=init_words, **options)


def make_labels(clip, images, agree):
    """Predict the most likely classes of zero-shot CLIP, or the least likely classes."""
    scores = ZeroShotCLIP(CLASSES, clip)(images)
    return scores.argmax(-1) if agree else scores.argmin(-1)


def slow_gradients(module, images, labels):
    """Compute the cross-entropy, G_d and G_g as lists of numbers, image by image with separate graphs."""
    teacher = ZeroShotCLIP(CLASSES, module.clip)(images).softmax(-1).tolist()
    found = []
    for general in (False, True):
        prompt = module.prompt.detach().clone().requires_grad_()
        texts = torch.nn.functional.normalize(module.text(prompt), dim=-1)
        loss = 0
        for feature, label, known in zip(module.clip.encode_image(images), labels.tolist(), teacher, strict=True):
            scores = torch.stack([module.clip.logit_scale * (feature @ text) / feature.norm() for text in texts])
            logs = scores - scores.exp().sum().log()
            if general:
                loss = loss - sum(p * logs[i] for i, p in enumerate(known)) / len(labels)
            else:
                loss = loss - logs[label] / len(labels)
        loss.backward()
        found.append((loss.item(), prompt.grad.flatten().tolist()))
    return found[0][0], found[0][1], found[1][1]


def slow_projection(domain, general, share):
    product = sum(a * b for a, b in zip(domain, general, strict=True))
    if product >= 0:
        return domain
    length = sum(b * b for b in general)
    return [a - share * product / length * b for a, b in zip(domain, general, strict=True)]


def step_gradient(module, images, labels):
    """Compute a step's loss and gradient."""
    loss = module.training_step((images, labels), 0)
    loss.backward()
    return loss.item(), module.prompt.grad


@pytest.mark.parametrize(("agree", "share"), [(True, 1.0), (False, 0.375)])
def test_gradient_matches_the_paper(clip, images, agree, share):
    module = make(clip, projection=share)
    labels = make_labels(clip, images, agree)
    value, domain, general = slow_gradients(module, images, labels)
    opposed = sum(a * b for a, b in zip(domain, general, strict=True)) < 0
    assert opposed != agree, "exactly one choice of labels agrees with the teacher"
    expected = torch.tensor(slow_projection(domain, general, share))
    loss, found = step_gradient(module, images, labels)
    assert loss == pytest.approx(value, rel=1e-5)
    assert (found.flatten() - expected).abs().max() < 1e-5 * expected.abs().max().clamp_min(1.0)


def test_initial_words_follow_zeros(clip):
    words = PromptFL(CLASSES, clip, prompt_length=2, init_words="a photo").prompt
    start = make(clip, init_words="a photo").prompt
    assert torch.equal(start[2:], words)
    assert not start[:2].any()


def test_a_student_equal_to_its_teacher_takes_a_plain_step(clip, images):
    """The divergence's gradient is then only rounding error, and its length must not be a divisor."""
    module = make(clip)
    labels = make_labels(clip, images, agree=False)
    module.teacher._text_features = module.text(module.prompt).detach()
    module.training_step((images, labels), 0).backward()
    plain = PromptFL(CLASSES, clip, prompt_length=4)
    plain.load_state(module.shared_state())
    torch.testing.assert_close(module.prompt.grad, step_gradient(plain, images, labels)[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("length", "step"), [(1e-5, 3.0), (1e-2, 0.0)])
def test_a_direction_within_rounding_errors_is_ignored(length, step):
    """The threshold is the square root of the machine epsilon, 3.5e-4 of the other gradient's length."""
    domain = torch.tensor([[3.0, 0.0]])
    aligned = aligned_gradient(domain, torch.tensor([[-3 * length, 0.0]]), 1.0)
    assert aligned.tolist() == [[step, 0.0]]
