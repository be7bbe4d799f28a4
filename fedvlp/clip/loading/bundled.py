"""The tiny CLIP that comes with the package: its open_clip configuration and its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

_FOLDER = Path(__file__).parent / "tiny"


def bundled_config() -> dict[str, Any]:
    """Returns the keyword arguments with which open_clip's ``CLIP`` class builds the tiny CLIP."""
    config: dict[str, Any] = json.loads((_FOLDER / "model.json").read_text(encoding="utf-8"))
    return config


def expand(stored: dict[str, Tensor], vocabulary_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Returns a full state dict in float32 from one that stores trained rows of the vocabulary only.

    Words that no caption used have no row; theirs are drawn anew as they were before training, from N(0, 0.02).

    Args:
        stored: Tensors by name, with ``token_embedding.index`` (the trained rows' numbers) and
            ``token_embedding.rows`` (their values) instead of ``token_embedding.weight``.
        vocabulary_size: Number of rows of the whole vocabulary.
        seed: Seed of the rows that are drawn anew.
    """
    state = {name: tensor.float() for name, tensor in stored.items() if not name.startswith("token_embedding.")}
    rows = stored["token_embedding.rows"].float()
    generator = torch.Generator().manual_seed(seed)
    weight = 0.02 * torch.randn(vocabulary_size, rows.shape[1], generator=generator)
    weight[stored["token_embedding.index"].long()] = rows
    state["token_embedding.weight"] = weight
    return state


def bundled_state_dict() -> dict[str, Tensor]:
    """Returns the tiny CLIP's weights in float32, by the names of open_clip's ``CLIP`` class."""
    stored = load_file(_FOLDER / "weights.safetensors")
    return expand(stored, int(bundled_config()["text_cfg"]["vocab_size"]))
