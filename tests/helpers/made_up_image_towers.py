"""Small CLIPs with two-block image towers of timm, for 32 x 32 pixels."""

from typing import Any

import timm
import torch
from timm.models import register_model

from fedvlp.clip import CLIP, build_model
from tests.helpers.clips import make_tokenizer

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}

# By kind: timm's model, its other options, and open_clip's options for pooling and projection.
VITS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "siglip": ("vit_base_patch16_siglip_224", {}, {"timm_pool": "map", "timm_proj": "none"}),
    "biomed": ("vit_base_patch16_224", {"qk_norm": True}, {"timm_pool": "", "timm_proj": "linear"}),
    "apple": ("vit_large_patch14_clip_224", {}, {"timm_pool": "token", "timm_proj": None}),
    "registers": ("vit_medium_patch16_reg4_gap_256", {}, {"timm_pool": "", "timm_proj": "mlp"}),
    "eva02": ("eva02_base_patch16_clip_224", {}, {"timm_pool": "token", "timm_proj": None}),
    "eva": ("eva_giant_patch14_224", {}, {"timm_pool": "", "timm_proj": "linear"}),
    "post_norm": ("eva02_enormous_patch14_clip_224", {"use_rot_pos_emb": True}, {"timm_pool": "token"}),
    "mixed": ("eva02_base_patch16_clip_224", {"rope_type": "mixed"}, {"timm_pool": "token"}),
    "pe_core": ("vit_pe_core_base_patch16_224", {"attn_pool_num_heads": 4}, {"timm_pool": "map", "timm_proj": None}),
}
SWIN = {"img_size": 32, "window_size": 2, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "convnext": ("test_convnext", {}, {}),
    "swin": ("swin_tiny_patch4_window7_224", SWIN, {}),
}


def vision(kind: str) -> dict[str, Any]:
    """Build open_clip's `vision_cfg` for a kind of small image tower. Joint features have width 24."""
    _, _, reading = {**VITS, **OTHERS}[kind]
    return {"timm_model_name": f"made_up_{kind}", "image_size": 32, "timm_proj": "linear", **reading}


def image_clip(kind: str) -> CLIP:
    """Create a CLIP with such a tower and CLIP's own text tower. All weights of the image tower affect its output."""
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
    config = {"embed_dim": 24, "vision_cfg": vision(kind), "text_cfg": text}
    clip = CLIP(build_model(config), make_tokenizer(context_length=77), config)
    generator = torch.Generator().manual_seed(3)
    # timm initializes some scales to 0 or almost 0.
    for parameter in clip.model.visual.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return clip


def _register(kind: str, base: str, options: dict[str, Any]) -> None:
    def build(**given: Any) -> Any:
        return timm.create_model(base, **options, **given)

    build.__name__ = f"made_up_{kind}"
    register_model(build)


for _kind, (_base, _options, _) in VITS.items():
    _register(_kind, _base, {**SMALL, **_options})
for _kind, (_base, _options, _) in OTHERS.items():
    _register(_kind, _base, _options)
