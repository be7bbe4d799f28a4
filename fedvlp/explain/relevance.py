"""How much each patch of an image speaks for a class, by the gradient of that class's logit.

    ``grad_cam``    Selvaraju et al., "Grad-CAM", ICCV 2017, Eqs. 1 and 2. The feature map of a ViT is what goes into
                    the attention of the last block, the last place where patches act on the class token; that of a
                    ResNet is the output of its last stage. (TRIP, Fig. 8)
    ``attention``   mean over heads of (A * dy/dA)+ , Chefer et al., "Generic attention-model explainability", ICCV
                    2021, Eq. 5; its row of the class token, averaged over blocks (PLAN, Fig. 7).

The tower is only watched, never changed, and the mixture of a method's prompts counts as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isqrt
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

from fedvlp.clip import CLIP
from fedvlp.core.module import FederatedModule
from fedvlp.utils.errors import UserError

Method = Literal["grad_cam", "attention"]
Logits = Callable[[Tensor], Tensor]
"""From images [B, 3, H, V] to logits [B, C], differentiable in what CLIP's image tower computes."""

Seen = list[tuple[Tensor, Tensor]]
"""Input and output of each differentiable call of a layer."""


def relevance(
    clip: CLIP,
    logits: Logits,
    images: Float[Tensor, "B 3 H V"],
    classes: Int[Tensor, "B"],
    method: Method,
) -> Float[Tensor, "B rows columns"]:
    """Returns how much each patch raises the logit of its image's class, at least 0, in no particular unit.

    Raises:
        UserError: If the image tower is of a kind in which the method cannot look.
    """
    check_tower(clip, method)
    visual: Any = clip.model.visual
    blocks = list(visual.transformer.resblocks) if isinstance(visual, VisionTransformer) else []
    last = blocks[-1].ln_1 if blocks else visual.layer4
    layers = [layer for block in blocks for layer in (block.ln_1, block.ls_1)] if method == "attention" else [last]
    with torch.enable_grad(), _watched(layers) as seen:
        scores = logits(images.detach().clone().requires_grad_())
        score = scores.gather(1, classes[:, None]).sum()  # images do not see each other
    side = isqrt(int(clip.num_image_tokens or 0) - 1)
    if method == "attention":
        tokens = _weighted_attention(score, blocks, seen)[:, 1:]
    else:
        tokens = _grad_cam(score, _widest(seen[0])[1], side * side)
    return tokens[:, : side * side].detach().float().reshape(-1, side, side)


def suited_method(clip: CLIP) -> Method:
    """Returns Grad-CAM for a ResNet; attention for a ViT, where Grad-CAM often marks the background."""
    return "grad_cam" if isinstance(clip.model.visual, ModifiedResNet) else "attention"


def check_tower(clip: CLIP, method: Method) -> None:
    """Refuses a method that cannot look into the image tower.

    Raises:
        UserError: If the tower is neither a ViT of CLIP's own kind nor, for Grad-CAM, a ResNet.
    """
    visual: Any = clip.model.visual
    if isinstance(visual, ModifiedResNet):
        if method == "attention":
            raise UserError("A ResNet has no attention between patches. Use --relevance grad_cam, or a ViT.")
    elif not (
        isinstance(visual, VisionTransformer)
        and visual.attn_pool is None
        and visual.pool_type == "tok"
        and all(type(block) is ResidualAttentionBlock for block in visual.transformer.resblocks)
    ):
        raise UserError(
            "The relevance of patches is read from ViT and ResNet towers of open_clip, but this image tower is a "
            f"{type(visual).__name__} of another kind. Choose another --model.clip.name, for example ViT-B-16."
        )


def differentiable_logits(module: FederatedModule) -> Logits:
    """Returns a method's logits with a gradient to the image tower, which its own ``constants`` cut off.

    A prepared ``features`` is computed anew; all else that is prepared, such as routing weights, stays constant.
    """
    return lambda images: module(differentiable_constants(module, images))


def differentiable_constants(module: FederatedModule, images: Float[Tensor, "B 3 H V"]) -> dict[str, Tensor]:
    """Returns what a method prepares of images, ``features`` with a gradient."""
    constants = module.constants(images)
    if "features" not in constants:
        return constants
    clip: Any = module.clip
    return {**constants, "features": clip.encode_image(images)}


def _grad_cam(score: Tensor, tokens: Tensor, patches: int) -> Float[Tensor, "B patches"]:
    """Returns (sum_w alpha_w A_w)+ with alpha_w the mean over patches of dy / dA_w."""
    (gradient,) = torch.autograd.grad(score, tokens)
    if tokens.ndim == 4:  # a ResNet's [B, W, rows, columns]
        values, slopes = (tensor.flatten(2).transpose(1, 2) for tensor in (tokens, gradient))
    else:  # behind the class token, and before a prompt's
        values, slopes = (tensor[:, 1 : 1 + patches] for tensor in (tokens, gradient))
    return torch.einsum("bpw,bw->bp", values, slopes.mean(dim=1)).relu()


def _weighted_attention(score: Tensor, blocks: Sequence[Any], seen: Sequence[Seen]) -> Float[Tensor, "B N"]:
    """Returns the mean over blocks and heads of (A * dy/dA)+ from the class token to each token."""
    keys = [_widest(calls)[1] for calls in seen[::2]]
    read = [_widest(calls)[0] for calls in seen[1::2]]
    gradients = torch.autograd.grad(score, read)
    maps = [_of_block(block.attn, *each) for block, *each in zip(blocks, keys, gradients, strict=True)]
    return torch.stack(maps).mean(dim=0)


def _of_block(attention: nn.MultiheadAttention, tokens: Tensor, gradient: Tensor) -> Float[Tensor, "B N"]:
    """Returns the mean over heads of (A * dy/dA)+, in the row of the class token.

    Args:
        attention: The block's attention.
        tokens: What goes into it, the class token first.
        gradient: dy / d of what comes out of it.
    """
    heads = attention.num_heads
    parts = linear(tokens, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
    query, key, value = (torch.unflatten(part, -1, (heads, -1)) for part in parts)  # [B, N, heads, width of a head]
    weights = torch.einsum("bhd,bnhd->bhn", query[:, 0], key) / attention.head_dim**0.5
    slopes = torch.unflatten(gradient[:, 0] @ attention.out_proj.weight, -1, (heads, -1))
    weighted: Tensor = weights.softmax(-1) * torch.einsum("bhd,bnhd->bhn", slopes, value)
    return weighted.relu().mean(dim=1)


@contextmanager
def _watched(layers: Sequence[nn.Module]) -> Iterator[list[Seen]]:
    """Gives, for each layer, what it was called with inside the block where a gradient will flow."""
    seen: list[Seen] = [[] for _ in layers]
    handles = [layer.register_forward_hook(partial(_keep, calls)) for layer, calls in zip(layers, seen, strict=True)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _keep(calls: Seen, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Adds a call to those that were seen."""
    if output.requires_grad:
        calls.append((inputs[0], output))


def _widest(calls: Seen) -> tuple[Tensor, Tensor]:
    """Returns the call for a whole sequence of tokens; some prompts are looked at alone, too."""
    if not calls:
        raise RuntimeError("These logits do not come from this image tower. Keep `features` in what is prepared.")
    return max(calls, key=lambda call: call[1].numel())
