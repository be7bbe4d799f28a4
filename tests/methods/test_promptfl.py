"""PromptFL and single-domain tuning: what a prompt starts from, where the class stands, and the teacher."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedvlp import PromptFL, SingleDomain
from fedvlp.clip import zero_shot_text_features
from fedvlp.utils.errors import UserError

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
both = pytest.mark.parametrize("method", [PromptFL, SingleDomain])


@both
def test_a_prompt_of_words_is_zero_shot_clip(clip, method):
    """With "a photo of a" and nothing more, the text is the one template's, but for the full stop that both have."""
    module = method(CLASSES, clip, prompt_length=4, init_words="a photo of a")
    expected = zero_shot_text_features(clip, CLASSES, 1)
    ours = torch.nn.functional.normalize(module.text(module.prompt), dim=-1)
    torch.testing.assert_close(ours, torch.nn.functional.normalize(expected, dim=-1), atol=1e-5, rtol=0)


def test_the_class_stands_where_it_is_asked_to(clip, images):
    logits = {}
    for position in ("end", "middle", "front"):
        torch.manual_seed(0)
        module = PromptFL(CLASSES, clip, prompt_length=4, init_words="a photo of a", class_position=position)
        logits[position] = module(images)
        words = {"end": "a photo of a {}.", "middle": "a photo {} of a.", "front": "{} a photo of a."}[position]
        ids = clip.tokenizer([words.format(name) for name in CLASSES])
        texts = torch.nn.functional.normalize(clip.encode_text(ids), dim=-1)
        features = torch.nn.functional.normalize(clip.encode_image(images), dim=-1)
        torch.testing.assert_close(logits[position], clip.logit_scale * features @ texts.T, atol=2e-3, rtol=1e-3)
    assert not torch.allclose(logits["end"], logits["front"], atol=0.1)


def test_each_class_has_its_own_prompt(clip, images):
    module = PromptFL(CLASSES, clip, prompt_length=5, class_specific=True)
    assert module.prompt.shape == (3, 5, clip.text_width)
    plain = PromptFL(CLASSES, clip, prompt_length=5)
    columns = []
    for label, prompt in enumerate(module.prompt.detach()):
        plain.load_state({"prompt": prompt})
        columns.append(plain(images)[:, label])
    torch.testing.assert_close(module(images), torch.stack(columns, 1), atol=1e-4, rtol=1e-4)


def test_class_specific_prompts_refuse_other_classes(clip):
    module = PromptFL(CLASSES, clip, class_specific=True)
    with pytest.raises(UserError, match="learns for its own classes alone"):
        module.for_classes(["house", "dog", "cow"])


def test_loss_with_a_teacher(clip, images):
    """Cross-entropy and the divergence from zero-shot CLIP, image by image."""
    module = PromptFL(CLASSES, clip, kl_weight=0.5, templates=3)
    text = torch.nn.functional.normalize(zero_shot_text_features(clip, CLASSES, 3), dim=-1)
    features = torch.nn.functional.normalize(clip.encode_image(images), dim=-1)
    teacher = softmax((clip.logit_scale * features @ text.T).double().numpy(), axis=-1)
    student = softmax(module(images).detach().double().numpy(), axis=-1)
    expected = np.mean(
        [
            -np.log(student[i, LABELS[i]]) + 0.5 * sum(teacher[i] * (np.log(teacher[i]) - np.log(student[i])))
            for i in range(6)
        ]
    )
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-4)
