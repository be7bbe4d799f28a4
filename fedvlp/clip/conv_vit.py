"""The image tower of fedvlp-small. Importing this module registers it with timm, so that open_clip can build it."""

from functools import partial
from typing import Any

from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.norm import LayerNorm2d
from timm.models import is_model, register_model
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import nn


def conv_vit_64(num_classes: int, global_pool: Any, **_: Any) -> VisionTransformer:
    """Make a ViT for 64 x 64 pixels with random weights, where convolutions compute the 8 x 8 tokens.

    Three convolutions replace the single patch layer and learn from far fewer images (Xiao et al., "Early Convolutions
    Help Transformers See Better", NeurIPS 2021). The joint space has `num_classes` dimensions.
    """
    width = 192
    stem = ConvStem(channels=(width // 4, width // 2, width), norm_layer=LayerNorm2d, act_layer=nn.GELU)
    return VisionTransformer(
        img_size=64,
        patch_size=1,
        num_classes=num_classes,
        global_pool=global_pool,
        embed_dim=width,
        depth=4,
        num_heads=3,
        class_token=False,
        embed_layer=partial(HybridEmbed, backbone=stem, proj=False),
    )


# timm would warn about a registered name, for example if a notebook reloads this module.
if not is_model(conv_vit_64.__name__):
    register_model(conv_vit_64)
