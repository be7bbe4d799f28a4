"""FedTPG's prompt, loss and gradients head by head and class by class, and what does not depend on the classes."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp import FedTPG
from tests.helpers.slow import CLASSES, assert_same, slow_cross_entropy, slow_texts, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])


@pytest.fixture
def method(clip):
    torch.manual_seed(5)
    made = FedTPG(CLASSES, clip)
    spread(made.network.parameters(), 0.1)  # biases begin at zero, norms at one
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


def test_prompt_loss_and_gradients_are_those_of_the_paper(method, clip, images):
    parts = {name: value.detach().clone().requires_grad_() for name, value in method.network.named_parameters()}
    prompt = slow_prompt(clip, parts, heads=4)
    torch.testing.assert_close(method.prompt(), prompt, atol=1e-5, rtol=1e-5)
    expected = slow_cross_entropy(clip, clip.encode_image(images), slow_texts(clip, prompt), LABELS)
    loss = method.training_step((images, LABELS), 0)
    slow = assert_same(loss, expected, list(method.network.parameters()), list(parts.values()))
    assert all(gradient.any() for gradient in slow)
