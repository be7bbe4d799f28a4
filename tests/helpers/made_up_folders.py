"""Folders of small CLIPs with random weights, one of each kind, for names with `local-dir:`."""

import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import save_file
from transformers import BertConfig, XLMRobertaConfig

from fedvlp.clip import build_model
from tests.helpers.made_up_tokenizers import save_unigram, save_word_piece

OWN_VIT = {"image_size": 32, "patch_size": 16, "width": 48, "layers": 2, "head_width": 16}
OWN_TEXT = {"context_length": 48, "vocab_size": 300, "width": 32, "heads": 4, "layers": 2}
FOREIGN = {"hf_tokenizer_name": "made-up/tokenizer"}
# open_clip itself looks for an encoder of this name in the working directory.
ENCODER = {"hf_model_name": "encoder", "context_length": 48, **FOREIGN}
ENCODER_SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
XLM_R = (("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s>", "<pad>")

CONFIGS: dict[str, dict[str, Any]] = {
    "siglip": {
        "embed_dim": 96,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit3", "timm_pool": "map", "timm_proj": "none"},
        "text_cfg": {
            **OWN_TEXT,
            **FOREIGN,
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
        },
    },
    "biomedclip": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear"},
        "text_cfg": {**ENCODER, "hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"},
    },
    "xlm_roberta": {
        "embed_dim": 24,
        "vision_cfg": OWN_VIT,
        "text_cfg": {**ENCODER, "hf_pooler_type": "mean_pooler"},
    },
    "coca": {
        "embed_dim": 24,
        "custom_text": True,
        "vision_cfg": {**OWN_VIT, "attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True},
        "text_cfg": {**OWN_TEXT, "vocab_size": 49408, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {**OWN_TEXT, "vocab_size": 49408, "attn_pooler_heads": 4},
    },
    "worldwide": {
        "embed_dim": 24,
        "vision_cfg": OWN_VIT,
        "text_cfg": {**OWN_TEXT, **FOREIGN, "pool_type": "eos", "eos_id": 2},
    },
}


def write_folder(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write a CLIP's config, weights, tokenizer and encoder config into a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[kind]
    if kind == "siglip":
        save_unigram(folder, ("<pad>", "</s>", "<unk>"), "$A </s>", "</s>")
    elif kind == "biomedclip":
        save_word_piece(folder)
        BertConfig(**ENCODER_SIZES, intermediate_size=64).save_pretrained(folder / "encoder")
    elif kind == "xlm_roberta":
        save_unigram(folder, *XLM_R)
        XLMRobertaConfig(**ENCODER_SIZES, intermediate_size=64).save_pretrained(folder / "encoder")
    elif kind == "worldwide":
        save_unigram(folder, *XLM_R)
    half = [0.5, 0.5, 0.5]
    preprocess = {"mean": half, "std": half, "resize_mode": "squash", "size": config["vision_cfg"]["image_size"]}
    described = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(described), encoding="utf-8")
    save_file(_random_weights(kind, folder, seed), folder / "open_clip_model.safetensors")
    return folder


@torch.no_grad()
def _random_weights(kind: str, folder: Path, seed: int) -> dict[str, torch.Tensor]:
    config = CONFIGS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "coca":
            # Published CoCa files also contain the caption decoder.
            model = open_clip.CoCa(**{name: value for name, value in config.items() if name != "custom_text"})
        else:
            model = build_model(config, folder=folder)
        # The initial weights are so small that tokens hardly attend to each other.
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return model.state_dict()
