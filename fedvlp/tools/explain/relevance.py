"""How much each patch of an image speaks for a class, by the gradient of that class's logit.

    ``grad_cam``    Selvaraju et al., "Grad-CAM", ICCV 2017, Eqs. 1 and 2. The feature map of a ViT is what goes into
                    the attention of the last block, the last place where patches act on the class token; that of a
                    ResNet is the output of its last stage. (TRIP, Fig. 8)
    ``attention``   mean over heads of (A * dy/dA)+ , Chefer et al., "Generic attention-model explainability", ICCV
                    2021, Eq. 5; its row of the class token, averaged over blocks (PLAN, Fig. 7).

The tower is read through forward hooks and never changed, and the mixture of a method's prompts counts as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isqrt
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn.functional import linear

from fedvlp.clip import CLIP
from fedvlp.clip.towers import ImageTower, ResNetTower, VisionTransformerTower
from fedvlp.core.module import FederatedModule
from fedvlp.utils.errors import UserError

Method = Literal["grad_cam", "attention"]
Logits = Callable[[Tensor], Tensor]
"""From images [B, 3, V, V] to logits [B, C], differentiable in what CLIP's image tower computes."""

Calls = list[tuple[Tensor, Tensor]]
"""Input and output of each differentiable call of a layer."""


def relevance(
    clip: CLIP,
    logits: Logits,
    images: Float[Tensor, "B 3 V V"],
    classes: Int[Tensor, "B"],
    method: Method,
    tower: ImageTower | None = None,
) -> Float[Tensor, "B rows columns"]:
    """Returns how much each patch raises the logit of its image's class, at least 0, in no particular unit.

    Args:
        clip: The frozen CLIP.
        logits: What classifies.
        images: In which a class is looked for.
        classes: That of each image.
        method: How relevance is measured.
        tower: The image tower that the classifier runs; the frozen CLIP's if not given.

    Raises:
        UserError: If the image tower is of a kind in which the method cannot look.
    """
    check_tower(clip, method)
    tower = tower or clip.image
    blocks: list[Any] = [] if tower.blocks is None else list(tower.blocks)
    side = isqrt(int(clip.num_image_tokens or 0) - 1)
    if method == "attention":
        layers = [*(block.ln_1 for block in blocks), *(block.ls_1 for block in blocks)]
    else:
        layers = [tower.last_stage if isinstance(tower, ResNetTower) else blocks[-1].ln_1]
    with torch.enable_grad(), _recorded(layers) as calls:
        scores = logits(images.detach().clone().requires_grad_())
        # An image's logits depend on that image alone, so one gradient of the sum is that of each.
        score = scores.gather(1, classes[:, None]).sum()
    if method == "attention":
        tokens = _weighted_attention(score, blocks, calls[: len(blocks)], calls[len(blocks) :])[:, 1:]
    else:
        tokens = _grad_cam(score, _largest(calls[0])[1], side * side)
    # Behind the patches stand the tokens of image prompts, if there are any.
    return tokens[:, : side * side].detach().float().reshape(-1, side, side)


def suited_method(clip: CLIP) -> Method:
    """Returns Grad-CAM for a ResNet; attention for a ViT, where Grad-CAM often marks the background."""
    return "grad_cam" if isinstance(clip.image, ResNetTower) else "attention"


def check_tower(clip: CLIP, method: Method) -> None:
    """Refuses a method that cannot look into the image tower.

    Raises:
        UserError: If the tower is neither a ViT of CLIP's own kind nor, for Grad-CAM, a ResNet.
    """
    if isinstance(clip.image, ResNetTower):
        if method == "attention":
            raise UserError("A ResNet has no attention between patches. Use --relevance grad_cam, or a ViT.")
    elif not _is_plain_vit(clip.image):
        raise UserError(
            "The relevance of patches is read from ViT and ResNet towers of open_clip, but this image tower is a "
            f"{clip.image.kind} of another kind. Choose another --model.clip.name, for example ViT-B-16."
        )


def _is_plain_vit(tower: ImageTower) -> bool:
    """Whether an image tower is a ViT as CLIP has it: a class token, and blocks of attention and MLP."""
    return (
        isinstance(tower, VisionTransformerTower)
        and tower.reads_class_token
        and all(type(block) is ResidualAttentionBlock for block in tower.blocks)
    )


def differentiable_logits(module: FederatedModule) -> Logits:
    """Returns a method's logits with a gradient to the image tower, which its own ``precomputed`` cuts off.

    A prepared ``features`` is computed anew; all else that is prepared, such as routing weights, stays constant.
    """
    return lambda images: module(differentiable_constants(module, images))


def differentiable_constants(module: FederatedModule, images: Float[Tensor, "B 3 V V"]) -> dict[str, Tensor]:
    """Returns what a method prepares of images, ``features`` with a gradient."""
    constants = module.precomputed(images)
    if "features" not in constants:
        return constants
    clip: Any = module.clip
    return {**constants, "features": clip.encode_image(images)}


def _grad_cam(score: Tensor, tokens: Tensor, patches: int) -> Float[Tensor, "B patches"]:
    """Returns (sum_w alpha_w A_w)+ with alpha_w the mean over patches of dy / dA_w."""
    (gradient,) = torch.autograd.grad(score, tokens)
    weights = _patch_tokens(gradient, patches).mean(dim=1)  # [B, W]
    return torch.einsum("bpw,bw->bp", _patch_tokens(tokens, patches), weights).relu()


def _patch_tokens(tokens: Tensor, patches: int) -> Float[Tensor, "B patches W"]:
    """Returns those of patches, of a ViT's tokens [B, N, W] or of a ResNet's feature map [B, W, rows, columns]."""
    if tokens.ndim == 4:
        return tokens.flatten(2).transpose(1, 2)
    return tokens[:, 1 : 1 + patches]  # behind the class token, and before those of an image prompt


def _weighted_attention(
    score: Tensor, blocks: Sequence[Any], norms: Sequence[Calls], scales: Sequence[Calls]
) -> Float[Tensor, "B N"]:
    """Returns the mean over blocks and heads of (A * dy/dA)+ from the class token to each token.

    Args:
        score: Sum of the logits in question.
        blocks: Of the image tower.
        norms: For each block, the calls of the norm in front of its attention.
        scales: For each block, the calls of what comes right behind its attention.
    """
    gradients = torch.autograd.grad(score, [_largest(calls)[0] for calls in scales])
    maps = []
    for block, calls, gradient in zip(blocks, norms, gradients, strict=True):
        tokens = _largest(calls)[1]
        maps.append(_weighted_attention_of_block(block.attn, tokens, gradient))
    return torch.stack(maps).mean(dim=0)


def _weighted_attention_of_block(
    attention: nn.MultiheadAttention, tokens: Float[Tensor, "B N W"], gradient: Float[Tensor, "B queries W"]
) -> Float[Tensor, "B N"]:
    """Returns the mean over heads of (A * dy/dA)+, in the row of the class token.

    Args:
        attention: The block's attention.
        tokens: What goes into it, the class token first.
        gradient: dy / d of what comes out of it, the class token first; prompts may be read without being asked for.
    """
    heads = attention.num_heads
    parts = linear(tokens, attention.in_proj_weight.to(tokens.dtype), attention.in_proj_bias).chunk(3, dim=-1)
    query = torch.unflatten(parts[0], -1, (heads, -1))  # [B, N, heads, width of a head], as are key and value
    key = torch.unflatten(parts[1], -1, (heads, -1))
    value = torch.unflatten(parts[2], -1, (heads, -1))
    weights = torch.einsum("bhd,bnhd->bhn", query[:, 0], key) / attention.head_dim**0.5
    # The gradient of what each head reads, by the chain rule through the output projection.
    slopes = torch.unflatten(gradient[:, 0] @ attention.out_proj.weight.to(gradient.dtype), -1, (heads, -1))
    weighted: Tensor = weights.softmax(-1) * torch.einsum("bhd,bnhd->bhn", slopes, value)
    return weighted.relu().mean(dim=1)


@contextmanager
def _recorded(layers: Sequence[nn.Module]) -> Iterator[list[Calls]]:
    """Yields a list for each layer, which its calls inside the block fill."""
    recorded: list[Calls] = [[] for _ in layers]
    handles = []
    for layer, calls in zip(layers, recorded, strict=True):
        handles.append(layer.register_forward_hook(partial(_record, calls)))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _record(calls: Calls, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Adds a call through which a gradient flows; as a forward hook, it returns nothing."""
    if output.requires_grad:
        calls.append((inputs[0], output))


def _largest(calls: Calls) -> tuple[Tensor, Tensor]:
    """Returns the call for a whole sequence of tokens; some methods encode prompts by themselves, too."""
    if not calls:
        raise RuntimeError("These logits do not come from this image tower. Keep `features` in what is prepared.")
    return max(calls, key=lambda call: call[1].numel())
