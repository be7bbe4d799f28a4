"""Methods with text prompts: loss and gradients, encoding one class at a time."""

import math

import numpy as np
import pytest
import torch

from fedvlp import CoCoOp, FedPGP, FedPHA, FedTPG, KgCoOp, PromptFolio, ZeroShotCLIP
from tests.helpers.slow import (
    CLASSES,
    assert_step,
    cosine,
    slow_cross_entropy,
    slow_logits,
    slow_texts,
    spread,
    unit,
)

LABELS = torch.tensor([2, 0, 1, 2])


def hand_written(clip):
    return [clip.encode_text(clip.tokenizer([f"a photo of a {name}."]))[0] for name in CLASSES]


def slow_cocoop(module, images):
    """Compute the Meta-Net by hand, which shifts the prompt for each image."""
    first, first_bias, second, second_bias = module.meta_net.parameters()
    loss = 0
    for feature, label in zip(module.clip.encode_image(images), LABELS.tolist(), strict=True):
        shift = second @ (first @ unit(feature) + first_bias).clamp_min(0) + second_bias
        texts = slow_texts(module.clip, torch.stack([vector + shift for vector in module.prompt]))
        loss = loss - slow_logits(module.clip, feature, texts).log_softmax(0)[label] / len(LABELS)
    return loss


def slow_kgcoop(module, images, distance_weight):
    texts = slow_texts(module.clip, module.prompt)
    loss = slow_cross_entropy(module.clip, module.clip.encode_image(images), texts, LABELS)
    for text, known in zip(texts, hand_written(module.clip), strict=True):
        loss = loss + distance_weight * (unit(text) - unit(known)).square().sum() / len(CLASSES)
    return loss


def slow_fed_pgp(module, images, contrast_weight, temperature):
    """Contrast each class's global feature with its handwritten feature (positive) and its own (negative)."""
    own = []
    for vector, shares in zip(module.global_prompt, module.local_left, strict=True):
        own.append(vector + sum(share * row for share, row in zip(shares, module.local_right, strict=True)))
    texts = slow_texts(module.clip, torch.stack(own))
    loss = slow_cross_entropy(module.clip, module.clip.encode_image(images), texts, LABELS)
    shared = slow_texts(module.clip, module.global_prompt)
    for one, known, personal in zip(shared, hand_written(module.clip), texts, strict=True):
        right = (cosine(one, known) / temperature).exp()
        wrong = (cosine(one, personal) / temperature).exp()
        loss = loss - contrast_weight * (right / (right + wrong)).log() / len(CLASSES)
    return loss


def slow_projector(shared, null_share, projection):
    """Compute V_2 V_2^T, one direction at a time, from the full or the reduced SVD of p_G."""
    directions = np.linalg.svd(shared.detach().numpy(), full_matrices=projection != "minor")[2]
    total = np.zeros((shared.shape[1], shared.shape[1]))
    for direction in directions[math.floor(len(shared) * (1 - null_share)) :]:
        total += np.outer(direction, direction)
    return torch.tensor(total, dtype=torch.float32)


def slow_fed_pha(module, images, null_share, projection, margin):
    """Sum both cross-entropies, the pulling loss and the pushing loss."""
    shared, own = module.global_prompt, module.local_prompt
    prompts = [own, shared, own @ slow_projector(shared, null_share, projection)]
    texts = [[unit(text) for text in slow_texts(module.clip, prompt)] for prompt in prompts]
    features = module.clip.encode_image(images)
    loss = sum(slow_cross_entropy(module.clip, features, classes, LABELS) for classes in texts[:2])
    for own_text, shared_text, projected in zip(*texts, strict=True):
        loss = loss + (own_text - projected).square().sum() / len(own_text) / len(CLASSES)
        distance = (own_text - shared_text).square().sum().sqrt()
        if distance < margin:
            loss = loss + (margin - distance) / len(CLASSES)
    return loss


def slow_prompt_folio(module, images, local_share):
    pairs = zip(
        slow_texts(module.clip, module.global_prompt), slow_texts(module.clip, module.local_prompt), strict=True
    )
    mixed = [(1 - local_share) * unit(one) + local_share * unit(other) for one, other in pairs]
    loss = 0
    for feature, label in zip(module.clip.encode_image(images), LABELS.tolist(), strict=True):
        scores = torch.stack([module.clip.logit_scale * (unit(feature) @ weight) for weight in mixed])
        loss = loss - scores.log_softmax(0)[label] / len(LABELS)
    return loss


def norm(vector, parts, name):
    centred = vector - vector.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * parts[f"{name}.weight"] + parts[f"{name}.bias"]


def attend(query, names, parts, heads):
    """Compute multi-head attention of one query to the names' features, one head at a time."""
    weights = [parts[f"attention.{kind}_proj_weight"] for kind in "qkv"]
    biases = parts["attention.in_proj_bias"].chunk(3)
    size = len(query) // heads
    taken = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        projected = weights[0][rows] @ query + biases[0][rows]
        keys = [weights[1][rows] @ name + biases[1][rows] for name in names]
        values = [weights[2][rows] @ name + biases[2][rows] for name in names]
        shares = torch.stack([(projected * key).sum() / math.sqrt(size) for key in keys]).softmax(0)
        taken.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    return parts["attention.out_proj.weight"] @ torch.cat(taken) + parts["attention.out_proj.bias"]


def slow_fed_tpg(module, images):
    """Generate each prompt vector separately, from names that are encoded one by one."""
    clip, parts = module.clip, dict(module.network.named_parameters())
    names = [unit(clip.encode_text(clip.tokenizer([name]))[0]) for name in CLASSES]
    names = [norm(name, parts, "text_norm") for name in names]
    prompt = []
    for query in parts["queries"]:
        found = attend(norm(query, parts, "query_norm"), names, parts, heads=4)
        hidden = parts["widen.weight"] @ norm(found, parts, "mlp_norm") + parts["widen.bias"]
        half = len(hidden) // 2
        gates = hidden[half:] * (1 + torch.erf(hidden[half:] / math.sqrt(2))) / 2
        prompt.append(found + parts["narrow.weight"] @ (hidden[:half] * gates) + parts["narrow.bias"])
    return slow_cross_entropy(clip, clip.encode_image(images), slow_texts(clip, torch.stack(prompt)), LABELS)


SIZES = {
    KgCoOp: {"init_words": None},
    FedPGP: {"prompt_length": 5, "rank": 2},
    FedPHA: {"prompt_length": 6},
    PromptFolio: {"prompt_length": 4},
}
MOVED = {FedPGP: ("local", 0.5), FedPHA: ("", 0.1), PromptFolio: ("", 0.5), FedTPG: ("", 0.1)}
"""Prefix of the parameters that get noise, and its deviation."""
CASES = [
    (CoCoOp, slow_cocoop, {}),
    (KgCoOp, slow_kgcoop, {"distance_weight": 3.0}),
    (FedPGP, slow_fed_pgp, {"contrast_weight": 2.0, "temperature": 0.25}),
    (FedPHA, slow_fed_pha, {"null_share": 0.8, "projection": "complement", "margin": 0.01}),
    (FedPHA, slow_fed_pha, {"null_share": 0.4, "projection": "minor", "margin": 1.5}),
    (PromptFolio, slow_prompt_folio, {"local_share": 0.4}),
    (FedTPG, slow_fed_tpg, {}),
]


@pytest.mark.parametrize(("kind", "slow_loss", "options"), CASES)
def test_loss_and_gradients_match_the_paper(clip, images, kind, slow_loss, options):
    torch.manual_seed(5)
    module = kind(CLASSES, clip, **SIZES.get(kind, {}), **options)
    start, deviation = MOVED.get(kind, ("", 0.0))
    spread([value for name, value in module.trainable_by_name().items() if name.startswith(start)], deviation)
    assert_step(module, images, LABELS, slow_loss(module, images, **options))


def test_kgcoop_starts_at_the_handwritten_prompt(clip, images):
    start = KgCoOp(CLASSES, clip)
    assert start.distance(start.text(start.prompt)) < 1e-9
    torch.testing.assert_close(start(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-3, rtol=1e-4)
