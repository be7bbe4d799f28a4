from __future__ import annotations

import numpy as np
import torch

from fedvlp.clip import cosine_logits
from fedvlp.methods.prompts import distillation_kl


def test_kl_is_the_mean_over_images_and_leaves_the_teacher_alone():
    generator = torch.Generator().manual_seed(0)
    teacher = (3 * torch.randn(5, 4, generator=generator)).requires_grad_()
    student = (3 * torch.randn(5, 4, generator=generator)).requires_grad_()
    loss = distillation_kl(teacher, student)
    p, q = (np.exp(x.detach().numpy()) for x in (teacher, student))
    p = p / p.sum(axis=1, keepdims=True)
    q = q / q.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss.item(), (p * np.log(p / q)).sum(axis=1).mean(), rtol=1e-5)
    loss.backward()
    assert teacher.grad is None
    np.testing.assert_allclose(student.grad.numpy(), (q - p) / 5, atol=1e-6)


def test_kl_is_zero_for_equals_and_ignores_a_shift():
    logits = torch.randn(3, 6)
    assert abs(distillation_kl(logits, logits + 5).item()) < 1e-6
    assert distillation_kl(logits, -logits).item() > 0


def test_logits_are_scaled_cosines():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 8, generator=generator)
    texts = torch.randn(3, 8, generator=generator)
    expected = [[100 * torch.cosine_similarity(image, text, dim=0) for text in texts] for image in images]
    found = cosine_logits(images, texts, 100.0)
    torch.testing.assert_close(found, torch.tensor(expected))
    torch.testing.assert_close(cosine_logits(7 * images, 0.1 * texts, 100.0), found)
    torch.testing.assert_close(cosine_logits(images, texts.expand(4, 3, 8), 100.0), found)


def test_logits_are_single_precision_under_autocast():
    images = torch.randn(4, 8)
    texts = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cosine_logits(images.bfloat16(), texts, 100.0)
    assert found.dtype == torch.float32
