"""Text features and their gradients, as the layouts of the prompted text encoder are compared by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedvlp.clip import CLIP
from fedvlp.clip.prompted_text import ClassPosition

NAMES = ["Alarm_Clock", "dog", "a very long name of a thing", "T-shirt", "TV"]


def coop_features(clip: CLIP, names: Sequence[str], prompt: Tensor, position: ClassPosition) -> Tensor:
    """Returns text features as CoOp's code makes them: a full sequence for each class through open_clip's own tower."""
    tower = getattr(clip.model, "text", clip.model)
    length = len(prompt)
    ids = clip.tokenizer([" ".join(["X"] * length) + f" {name}." for name in names])
    plain = clip.tokenizer([f"{name}." for name in names])
    embedded = tower.token_embedding(plain)
    rows = []
    for index, name in enumerate(names):
        number = len(clip.tokenizer.encode(name))
        before = {"end": length, "middle": length // 2, "front": 0}[position]
        row = embedded[index]
        parts = [row[:1], prompt[:before], row[1 : 1 + number], prompt[before:], row[1 + number : 77 - length]]
        rows.append(torch.cat(parts))
    hidden = tower.transformer(torch.stack(rows) + tower.positional_embedding, attn_mask=tower.attn_mask)
    ends = tower.ln_final(hidden)[torch.arange(len(names)), ids.argmax(dim=-1)]
    return clip.model.text.text_projection(ends) if hasattr(clip.model, "text") else ends @ tower.text_projection


def features_and_gradient(
    function: Callable[[Tensor], Tensor], prompt: Tensor, signal: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Returns the features of a prompt, and the prompt's gradient under a signal of the features' shape."""
    prompt = prompt.clone().requires_grad_()
    features = function(prompt)
    (normalize(features, dim=-1) * signal).sum().backward()
    return features.detach(), prompt.grad


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Fails unless features are within 1e-5, and gradients within 1e-4 of the largest one."""
    assert (found[0] - expected[0]).abs().max() < 1e-5
    assert (found[1] - expected[1]).abs().max() < 1e-4 * expected[1].abs().max()
