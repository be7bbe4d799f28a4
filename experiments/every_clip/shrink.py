"""All of open_clip's architectures, built without a network: shrunk to two layers, or only counted.

A shrunk model keeps the architecture's widths, patches, poolings, positions and context lengths.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import open_clip
import timm
import torch
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer

from fedvlp.clip import CLIP, build_model
from fedvlp.clip.tokens import Tokenizer
from tests.helpers.made_up_tokenizers import save_unigram, save_word_piece

ROBERTA: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 514}
ROBERTA |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
MT5 = {"model_type": "mt5", "vocab_size": 250112, "pad_token_id": 0, "eos_token_id": 1, "d_kv": 64}
MT5 |= {"feed_forward_proj": "gated-gelu", "is_encoder_decoder": True}
NLLB = {"model_type": "m2m_100", "vocab_size": 256206, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NLLB |= {"d_model": 1024, "encoder_attention_heads": 16, "activation_function": "relu", "is_encoder_decoder": True}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "roberta-base": {"model_type": "roberta", "vocab_size": 50265, **ROBERTA},
    "xlm-roberta-base": {"model_type": "xlm-roberta", "vocab_size": 250002, **ROBERTA},
    "xlm-roberta-large": {"model_type": "xlm-roberta", "vocab_size": 250002, **ROBERTA, **LARGE},
    "google/mt5-base": {**MT5, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
    "google/mt5-xl": {**MT5, "d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
    "facebook/nllb-200-distilled-600M": {**NLLB, "encoder_layers": 12, "encoder_ffn_dim": 4096},
    "facebook/nllb-200-distilled-1.3B": {**NLLB, "encoder_layers": 24, "encoder_ffn_dim": 8192},
}
"""Published configs of Hugging Face's text encoders, which open_clip would download from the hub."""

TWO_LAYERS = {"num_hidden_layers": 2, "num_layers": 2, "encoder_layers": 2}
ONE_DECODER_LAYER = {"num_decoder_layers": 1, "decoder_layers": 1}  # discarded by open_clip


def shrunk(name: str, folder: Path) -> CLIP:
    """Make a two-layer version of an architecture, with random weights and a small vocabulary.

    Args:
        name: One of `open_clip.list_models()`.
        folder: Folder for its tokenizer and its text encoder's config.
    """
    config = registered(name, folder, shrink=True)
    tokenizer = made_up_tokenizer(config["text_cfg"], folder)
    with small_trunks():
        model = build_model(config)
    return CLIP(model, tokenizer, config)


def count_parameters(name: str) -> int:
    """Count the parameters of both towers of an unchanged architecture."""
    with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
        model = build_model(registered(name, Path(folder), shrink=False))
    return sum(parameter.numel() for parameter in model.parameters())


def registered(name: str, folder: Path, shrink: bool) -> dict[str, Any]:
    """Read open_clip's config of an architecture, with its text encoder described in a folder instead of the hub."""
    config: dict[str, Any] = deepcopy(open_clip.get_model_config(name))
    text = config["text_cfg"]
    image = config["vision_cfg"]
    if shrink:
        text["layers"] = 2
        is_resnet = isinstance(image.get("layers"), list)
        image["layers"] = [1, 1, 1, 1] if is_resnet else 2
    if encoder := text.get("hf_model_name"):
        described = dict(ENCODERS[encoder])
        if shrink:
            described |= {"vocab_size": 1000, **TWO_LAYERS}
        (folder / "config.json").write_text(json.dumps(described | ONE_DECODER_LAYER), encoding="utf-8")
        text |= {"hf_model_name": str(folder), "hf_model_pretrained": False}
    elif shrink and "hf_tokenizer_name" in text:
        text["vocab_size"] = 1000
    return config


def made_up_tokenizer(text: Mapping[str, Any], folder: Path) -> Tokenizer:
    """Make a tokenizer of the text tower's kind with a small vocabulary, or CLIP's own."""
    context = text.get("context_length", 77)
    kind = text.get("hf_tokenizer_name")
    if kind is None:
        own: Tokenizer = SimpleTokenizer(context_length=context)
        return own
    if "bert-base" in kind and "roberta" not in kind:
        save_word_piece(folder)
    elif "SigLIP2" in kind:
        save_unigram(folder, ("<pad>", "</s>", "<unk>"), "$A </s>", "<pad>")
    elif "SigLIP" in kind or "mt5" in kind:
        save_unigram(folder, ("<pad>", "</s>", "<unk>"), "$A </s>", "</s>" if "SigLIP" in kind else "<pad>")
    elif "nllb" in kind:
        save_unigram(folder, ("<s>", "<pad>", "</s>", "<unk>", "eng_Latn"), "eng_Latn $A </s>", "<pad>")
    else:  # RoBERTa, XLM-R and XLM-V
        save_unigram(folder, ("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>", "<pad>")
    theirs: Tokenizer = HFTokenizer(str(folder), context_length=context, **text.get("tokenizer_kwargs", {}))
    return theirs


@contextmanager
def small_trunks() -> Iterator[None]:
    """Let timm build image towers of two layers, or of one per stage, during the block."""
    whole = timm.create_model

    def create(name: str, **options: Any) -> torch.nn.Module:
        if name.startswith(("convnext", "swin")):
            options["depths"] = (1, 1, 1, 1)
        elif name.startswith("fastvit"):
            stages = 5 if name in ("fastvit_mci3", "fastvit_mci4") else 4
            options["layers"] = (1,) * stages
        else:
            options["depth"] = 2
        model: torch.nn.Module = whole(name, **options)
        return model

    with mock.patch("timm.create_model", create):
        yield
