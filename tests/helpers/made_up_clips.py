"""Small CLIPs with random weights, one for each kind of text tower, with made-up tokenizers unless CLIP's fits."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import HFTokenizer
from transformers import BertConfig, M2M100Config, MT5Config, RobertaConfig, XLMRobertaConfig

from fedvlp.clip import CLIP
from tests.helpers.clips import make_tokenizer
from tests.helpers.made_up_tokenizers import save_byte_level, save_gemma, save_unigram, save_word_piece

VISION = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 2, "head_width": 16}
XLM_R = partial(save_unigram, special=("<s>", "<pad>", "</s>", "<unk>"), template="<s> $A </s>", padding="<pad>")
T5 = partial(save_unigram, special=("<pad>", "</s>", "<unk>"), template="$A </s>", padding="<pad>")
FIRST_SIGLIP = partial(save_unigram, special=("<pad>", "</s>", "<unk>"), template="$A </s>", padding="</s>")
NLLB = partial(
    save_unigram, special=("<s>", "<pad>", "</s>", "<unk>", "eng_Latn"), template="eng_Latn $A </s>", padding="<pad>"
)
TOKENIZERS = {
    **dict.fromkeys(("worldwide", "xlm-roberta"), XLM_R),
    **dict.fromkeys(("worldwide T5", "mt5"), T5),
    **dict.fromkeys(("clipa", "biomedclip"), save_word_piece),
    "siglip": FIRST_SIGLIP,
    "siglip2": save_gemma,
    "roberta": save_byte_level,
    "nllb": NLLB,
}
"""Tokenizers by kind. All other kinds use CLIP's own."""

SIGLIP = {"no_causal_mask": True, "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6}}
OWN: dict[str, dict[str, Any]] = {
    "clip": {},
    "worldwide": {"pool_type": "eos", "eos_id": 2},
    "worldwide T5": {"pool_type": "eos", "eos_id": 1},
    "siglip": SIGLIP,
    "siglip2": {**SIGLIP, "act_kwargs": {"approximate": "tanh"}},
    "clipa": {"no_causal_mask": True, "pool_type": "last", "tokenizer_kwargs": {"strip_sep_token": True}},
    "mobileclip": {"no_causal_mask": True},
    "coca": {"embed_cls": True},
    "qk_norm": {"qk_norm": True},
    "qk_norm of all": {"qk_norm": True, "no_causal_mask": True, "pool_type": "first"},
}
"""Kinds that use open_clip's own text transformer, with the options of its config."""

BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
ENCODERS = {
    "biomedclip": (BertConfig(**BERT), "cls_last_hidden_state_pooler"),
    "roberta": (RobertaConfig(**BERT, pad_token_id=1), "mean_pooler"),
    "xlm-roberta": (XLMRobertaConfig(**BERT, pad_token_id=1), "mean_pooler"),
    "mt5": (MT5Config(d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, pad_token_id=0), "mean_pooler"),
    "nllb": (
        M2M100Config(d_model=32, encoder_layers=3, decoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64),
        "cls_pooler",
    ),
}
"""Kinds that use an encoder of Hugging Face, with its config and its pooler."""

KINDS = (*OWN, *ENCODERS)


def made_up_clip(kind: str, folder: Path, vision: dict[str, Any] | None = None) -> CLIP:
    """Create a CLIP of one of `KINDS`, and save its tokenizer and encoder config in an empty folder.

    The context has 64 tokens, the text tower three blocks of width 32, and joint features have width 24.
    """
    text = {"context_length": 64, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}
    if kind in TOKENIZERS:
        TOKENIZERS[kind](folder)
        text["hf_tokenizer_name"] = str(folder)
        text["vocab_size"] = len(HFTokenizer(str(folder)).tokenizer)
    if kind in ENCODERS:
        encoder, pooler = deepcopy(ENCODERS[kind])
        encoder.vocab_size = text["vocab_size"]
        encoder.save_pretrained(folder)
        text |= {"hf_model_name": str(folder), "hf_model_pretrained": False, "hf_pooler_type": pooler}
    config = {"embed_dim": 24, "vision_cfg": vision or VISION, "text_cfg": {**text, **OWN.get(kind, {})}}
    if "siglip" in kind:
        config |= {"init_logit_bias": -10.0, "nonscalar_logit_scale": True}
    tokenizer = _tokenizer(config["text_cfg"])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = open_clip.CustomTextCLIP(**config)
        # The initial weights are so small that tokens hardly attend to each other.
        for weight in model.text.parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight.shape[-1] ** -0.5)
    return CLIP(model, tokenizer, config)


def _tokenizer(text: dict[str, Any]) -> Any:
    if "hf_tokenizer_name" not in text:
        return make_tokenizer(context_length=text["context_length"])
    options = text.get("tokenizer_kwargs", {})
    return HFTokenizer(text["hf_tokenizer_name"], context_length=text["context_length"], **options)
