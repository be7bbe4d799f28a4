"""FedTPG's prompt, loss and gradients head by head and class by class, and what does not depend on the classes."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp.clip import PromptedTextEncoder
from fedvlp.core.state import numel
from fedvlp.methods import FedTPG
from fedvlp.tools.explain.methods import text_prompts
from fedvlp.utils.errors import UserError
from tests.helpers.slow import unit

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([2, 0, 1, 2])


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    made = FedTPG(CLASSES, clip)
    with torch.no_grad():
        for value in made.network.parameters():
            value.add_(0.1 * torch.randn_like(value))  # biases begin at zero, norms at one
    return made


def norm(vector, parts, name):
    centred = vector - vector.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * parts[f"{name}.weight"] + parts[f"{name}.bias"]


def attended(query, names, parts, heads):
    """What one query takes of the names' features, one head after another."""
    weights = [parts[f"attention.{kind}_proj_weight"] for kind in "qkv"]
    biases = parts["attention.in_proj_bias"].chunk(3)
    size = len(query) // heads
    taken = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        asked = weights[0][rows] @ query + biases[0][rows]
        keys = [weights[1][rows] @ name + biases[1][rows] for name in names]
        values = [weights[2][rows] @ name + biases[2][rows] for name in names]
        shares = torch.stack([(asked * key).sum() / math.sqrt(size) for key in keys]).softmax(0)
        taken.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    return parts["attention.out_proj.weight"] @ torch.cat(taken) + parts["attention.out_proj.bias"]


def slow_prompt(clip, parts, heads):
    """Each vector of the prompt by itself, from the names encoded one by one."""
    names = [unit(clip.encode_text(clip.tokenizer([name]))[0]) for name in CLASSES]
    names = [norm(name, parts, "text_norm") for name in names]
    prompt = []
    for query in parts["queries"]:
        found = attended(norm(query, parts, "query_norm"), names, parts, heads)
        hidden = parts["widen.weight"] @ norm(found, parts, "mlp_norm") + parts["widen.bias"]
        half = len(hidden) // 2
        gates = hidden[half:] * (1 + torch.erf(hidden[half:] / math.sqrt(2))) / 2
        prompt.append(found + parts["narrow.weight"] @ (hidden[:half] * gates) + parts["narrow.bias"])
    return torch.stack(prompt)


def slow_loss(clip, images, prompt):
    """Cross-entropy, one image and one class after another, each class in a sequence of its own."""
    texts = []
    for name in CLASSES:
        texts.append(unit(PromptedTextEncoder(clip, [name], prompt_length=4, layout="plain")(prompt)[0]))
    loss = 0
    for feature, label in zip(clip.encode_image(images), LABELS.tolist(), strict=True):
        scores = torch.stack([clip.logit_scale * (unit(feature) * text).sum() for text in texts])
        loss = loss - scores.log_softmax(0)[label] / 4
    return loss


def test_prompt_loss_and_gradients_are_those_of_the_paper(method, clip, images):
    parts = {name: value.detach().clone().requires_grad_() for name, value in method.network.named_parameters()}
    prompt = slow_prompt(clip, parts, heads=4)
    torch.testing.assert_close(method.prompt(), prompt, atol=1e-5, rtol=1e-5)
    expected = slow_loss(clip, images, prompt)
    expected.backward()
    loss = method.training_step((images, LABELS), 0)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, value in method.network.named_parameters():
        slow = parts[name].grad
        assert slow.abs().max() > 0
        assert (value.grad - slow).abs().max() < 1e-5 * max(slow.abs().max(), 1.0)


def test_the_order_of_classes_does_not_matter(method, clip, images):
    order = [2, 0, 1]
    other = FedTPG([CLASSES[index] for index in order], clip)
    other.load_state(method.shared_state())
    torch.testing.assert_close(other.prompt(), method.prompt())
    torch.testing.assert_close(other(images), method(images)[:, order], atol=1e-4, rtol=1e-5)


def test_the_network_serves_other_classes(method, clip, images):
    other = FedTPG(["blue cross", "moon"], clip)
    other.load_state(method.shared_state())
    assert other(images).shape == (4, 2)
    assert not torch.allclose(other.prompt(), method.prompt(), atol=1e-3)
    assert text_prompts(other).keys() == {"prompt"}


def test_what_is_sent(clip):
    """4,206,080 parameters with ViT-B/16, where D = d = 512."""
    width = clip.text_width
    attention = 2 * (width + 1) * width + 2 * (clip.embed_dim * width + width)
    mlp = 8 * width * (width + 1) + (4 * width + 1) * width
    norms = 2 * (width + clip.embed_dim + width)
    assert numel(FedTPG(CLASSES, clip).shared_state()) == 4 * width + attention + mlp + norms


def test_heads_that_do_not_divide_the_width_are_refused(clip):
    with pytest.raises(UserError, match=f"heads that divide {clip.text_width}"):
        FedTPG(CLASSES, clip, heads=7)
