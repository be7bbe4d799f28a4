"""PromptFL: initial words, class positions, and class-specific prompts."""

import torch

from fedvlp import PromptFL

CLASSES = ["red circle", "star", "big square"]


def test_the_class_has_the_chosen_position(clip, images):
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
