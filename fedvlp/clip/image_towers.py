"""Image towers of open_clip models, with their joint features and tokens: ViTs, ResNets, ConvNeXts and others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from timm.layers.attention_pool import AttentionPoolLatent
from timm.models.convnext import ConvNeXt
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

from fedvlp.clip.blocks import Between, Blocks, Branch, add_branches, is_standard_block
from fedvlp.clip.timm_blocks import TimmBlocks, pool_scores
from fedvlp.utils.errors import UserError


class ImageTower:
    """An image tower of any kind, which computes joint features.

    It refers to the open_clip model's `visual` without copying or changing its weights. Raises UserError if it does not
    read square images.

    Attributes:
        image_size: V, the height and width of an image in pixels.
        width: W, the width of an image token, or the number of channels of the last feature map.
        num_tokens: P, the number of tokens of an image; None if the tower's tokens cannot be read.
        num_prefix: Number of first tokens that are not patches: a class token, registers, a mean.
        blocks: The transformer of a ViT.
        stages: The four stages of a ResNet or ConvNeXt. The last stage computes the last feature map.
    """

    width: int
    num_tokens: int | None = None
    num_prefix: int = 0
    blocks: Blocks | None = None
    stages: Sequence[nn.Module] = ()

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        size = visual.image_size
        sides = {int(side) for side in size} if isinstance(size, (tuple, list)) else {int(size)}
        if len(sides) > 1:
            raise UserError(f"Images must be square, but this model reads {size}. Choose another --model.clip.name.")
        self.image_size = sides.pop()
        if hasattr(visual, "trunk"):
            self.width = int(visual.trunk.num_features)

    @property
    def kind(self) -> str:
        """The name of open_clip's or timm's class, for messages."""
        return type(self._visual.trunk if isinstance(self._visual, TimmModel) else self._visual).__name__

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised.

        Raises UserError if the tower has fewer stages, or its stages cannot be run one by one.

        Args:
            images: Pixels after CLIP's transform.
            between: `between[j]` changes the output of stage j + 1. A ViT's stages are its blocks, with tokens
                [B, P, W]. ResNets and ConvNeXts have four stages with feature maps [B, channels, height, width].
        """
        if between:
            raise self._refusal(f"Features inside the image tower can be changed in {_VITS}, ResNets and ConvNeXts")
        return self._visual(images)

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Compute joint features, not normalised, and the image's tokens; raise UserError if unsupported."""
        raise self._refusal(_TOKENS)

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Compute joint features, not normalised, of tokens of the last block; raise UserError unless it is a ViT."""
        raise self._refusal(f"Single image tokens have joint features only in {_VITS}")

    def add_branches(self, branches: Mapping[int, Branch]) -> ImageTower:
        """Copy this tower and add branches in parallel to its blocks, as `add_branches` does."""
        tower = copy(self)
        tower.blocks = add_branches(self.blocks, branches, self.kind)
        return tower

    def require_prompts(self) -> VisionTransformerTower:
        """Return this tower, or raise UserError unless it supports image prompts."""
        rule = f"Image prompts can be learned in {_VITS}"
        if not isinstance(self, VisionTransformerTower):
            raise self._refusal(rule)
        if not self.supports_prompts:
            raise self._refusal(rule, "has another kind of attention than CLIP")
        return self

    def require_tokens(self) -> ImageTower:
        """Return this tower, or raise UserError if its tokens cannot be read."""
        if self.num_tokens is None:
            raise self._refusal(_TOKENS)
        return self

    def _refusal(self, rule: str, fact: str = "") -> UserError:
        fact = fact or f"is {self.kind}"
        return UserError(f"{rule}, but this image tower {fact}. Choose another --model.clip.name, such as ViT-B-16.")


class ResNetTower(ImageTower):
    """open_clip's ResNet; its tokens are the mean of the last feature map's pixels, then the pixels."""

    num_prefix = 1

    def __init__(self, visual: ModifiedResNet) -> None:
        super().__init__(visual)
        self.width = visual.attnpool.k_proj.in_features
        self.num_tokens = len(visual.attnpool.positional_embedding)
        self.stages = (visual.layer1, visual.layer2, visual.layer3, visual.layer4)

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised; `between` changes feature maps as in `ImageTower.features`."""
        return self._visual.attnpool(_run_stages(self.stages, self._visual.stem(images), between))

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Compute joint features, not normalised, and the tokens of the last feature map, without positions."""
        # The mean comes first, as in open_clip's attention pool.
        output = self._visual.forward_intermediates(images, indices=1)
        pixels = output["image_intermediates"][0].flatten(2).transpose(1, 2)  # [B, height * width, W]
        return output["image_features"], torch.cat([pixels.mean(dim=1, keepdim=True), pixels], dim=1)


class ConvNeXtTower(ImageTower):
    """timm's ConvNeXt, which has no tokens."""

    def __init__(self, visual: TimmModel) -> None:
        super().__init__(visual)
        self.stages = [*self._visual.trunk.stages]

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised; `between` changes feature maps as in `ImageTower.features`."""
        trunk = self._visual.trunk
        hidden = trunk.norm_pre(_run_stages(self.stages, trunk.stem(images), between))
        return self._visual.head(trunk.forward_head(hidden))


class VisionTransformerTower(ImageTower):
    """A ViT that supports prompts; its tokens are the last block's output, starting with the class token, if any.

    Prompts follow the image's own tokens and have no positions. Only the image's own tokens are pooled, so prompts act
    on them only inside the blocks.

    Attributes:
        read: The image's own tokens that `pool` reads.
        reads_class_token: Whether the joint features depend only on the class token.
        supports_prompts: Whether `scores` works with its attention.
    """

    blocks: Blocks
    num_tokens: int
    read: slice
    reads_class_token: bool
    supports_prompts: bool = True

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised; `between` changes tokens as in `ImageTower.features`."""
        return self.pool(self._run(images, between))

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Compute joint features, not normalised, and the output of the last block."""
        hidden = self._run(images)
        return self.pool(hidden), hidden

    @abstractmethod
    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Compute the first block's input: an image's tokens with positions, normalised if the ViT does so."""

    @abstractmethod
    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Prepare a prompt for the first block: without positions, normalised if the ViT does so."""

    @abstractmethod
    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised, from the last block's output for an image's own tokens, or `read`."""

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Compute the joint features, not normalised, that an image would have if this were its only token."""
        # Every kind of pool gives the same result for one token and for several equal tokens.
        copies = tokens.reshape(-1, 1, tokens.shape[-1]).expand(-1, self.num_prefix + 1, -1)
        features = self.pool(copies)
        return features.reshape(*tokens.shape[:-1], features.shape[-1])

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Compute the attention of the features to each prompt token: <q, k> / sqrt(head width), averaged over heads.

        The query comes from the last block: the class token's, or the mean over the patches if the tower averages
        them. An attention pool has its own query, and its keys come from the prompt tokens' last outputs.

        Args:
            hidden: Input of the last block, where the prompt follows the image's own tokens.
        """
        queries = slice(0, 1) if self.reads_class_token else slice(self.num_prefix, self.num_tokens)
        return self.blocks.last_scores(hidden, queries, self._prompt_indices(hidden))

    def _prompt_indices(self, hidden: Tensor) -> Int[Tensor, "L"]:
        return torch.arange(self.num_tokens, hidden.shape[1], device=hidden.device)

    def _run(self, images: Tensor, between: Sequence[Between] = ()) -> Tensor:
        blocks = [partial(self.blocks.run, index) for index in range(len(self.blocks))]
        return _run_stages(blocks, self.embed(images), between)


class OpenClipTower(VisionTransformerTower):
    """open_clip's own ViT, which pools by class token, mean or attention."""

    num_prefix = 1

    def __init__(self, visual: VisionTransformer) -> None:
        super().__init__(visual)
        self.width = visual.conv1.out_channels
        # The class token has a position as well.
        self.num_tokens = len(visual.positional_embedding)
        self.blocks = Blocks(visual.transformer)
        self.reads_class_token = visual.attn_pool is None and visual.pool_type == "tok"
        self.read = slice(1 if self.reads_class_token else self.num_tokens)
        # `scores` needs the keys of the last block and of the one pool.
        has_one_pool = getattr(visual, "attn_pool_contrastive", None) is None
        self.supports_prompts = has_one_pool and is_standard_block(visual.transformer.resblocks[-1])

    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Compute the class token and the patches, with positions, normalised."""
        # Calls open_clip's private steps, so that tokens can be added and blocks run one by one.
        return self._visual._embeds(images)

    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Normalise a prompt."""
        return self._visual.ln_pre(prompt)

    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised."""
        return self._to_joint_space(self._visual._pool(tokens)[0])

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Compute the joint features, not normalised, that an image would have if this were its only token."""
        if self._visual.attn_pool is None:
            return self._to_joint_space(self._visual.ln_post(tokens))
        return super().project(tokens)

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Compute the attention of the features to each prompt token; an attention pool uses its first query."""
        pool = self._visual.attn_pool
        if pool is None:
            return super().scores(hidden)
        outputs = self.blocks.run_last(hidden, self._prompt_indices(hidden))
        attention = pool.attn
        weights = (attention.q_proj_weight, attention.k_proj_weight)
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)[:2]
        q_bias, k_bias, _ = attention.in_proj_bias.chunk(3)
        query = linear(pool.ln_q(pool.query[0]), weights[0], q_bias)
        products = linear(pool.ln_k(outputs), weights[1], k_bias) @ query
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def _to_joint_space(self, normalised: Tensor) -> Tensor:
        # Without a projection, joint features have the tower's width.
        projection: Tensor | None = self._visual.proj
        return normalised if projection is None else normalised @ projection


class TimmTower(VisionTransformerTower):
    """timm's `VisionTransformer` or `Eva`, as in SigLIP, EVA02, PE-Core, ViTamin and BiomedCLIP.

    It may have a class token, registers or rotary positions, and pools by class token, mean or attention.
    """

    def __init__(self, visual: TimmModel) -> None:
        super().__init__(visual)
        self._trunk: Any = visual.trunk
        self.num_prefix = self._trunk.num_prefix_tokens
        # open_clip feeds one trunk without positions with images of another size than its timm default.
        rows, columns = self._trunk.patch_embed.dynamic_feat_size((self.image_size, self.image_size))
        self.num_tokens = rows * columns + self.num_prefix
        self.blocks = TimmBlocks(self._trunk)
        self.reads_class_token = self._trunk.attn_pool is None and self._trunk.global_pool == "token"
        self.read = slice(self.num_tokens)

    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Compute an image's tokens with their positions."""
        tokens = self._trunk._pos_embed(self._trunk.patch_embed(images))
        if isinstance(self._trunk, Eva):  # which returns its rotary positions as well
            tokens = tokens[0]
        return self.embed_prompt(tokens)

    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Normalise a prompt if the trunk does so before its first block."""
        return self._trunk.norm_pre(prompt)

    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised."""
        return self._visual.head(self._trunk.forward_head(self._trunk.norm(tokens)))

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Compute the attention of the features to each prompt token."""
        pool = self._trunk.attn_pool
        if not isinstance(pool, AttentionPoolLatent):
            return super().scores(hidden)
        return pool_scores(pool, self._trunk.norm(self.blocks.run_last(hidden, self._prompt_indices(hidden))))


def make_image_tower(visual: nn.Module) -> ImageTower:
    """Make the tower for the kind of open_clip's `visual`; raise UserError if it does not read square images."""
    if isinstance(visual, VisionTransformer):
        return OpenClipTower(visual)
    if isinstance(visual, ModifiedResNet):
        return ResNetTower(visual)
    if isinstance(visual, TimmModel) and isinstance(visual.trunk, (TimmVisionTransformer, Eva)):
        return TimmTower(visual)
    if isinstance(visual, TimmModel) and isinstance(visual.trunk, ConvNeXt):
        return ConvNeXtTower(visual)
    return ImageTower(visual)


_VITS = "ViTs (open_clip's own, VisionTransformer and Eva of timm)"
_TOKENS = f"Image tokens can be read from {_VITS} and open_clip's ResNets"


def _run_stages(stages: Sequence[Callable[[Tensor], Tensor]], hidden: Tensor, between: Sequence[Between]) -> Tensor:
    if len(between) > len(stages):
        raise UserError(f"Expected changes for at most {len(stages)} stages of the image tower; got {len(between)}.")
    for index, stage in enumerate(stages):
        hidden = stage(hidden)
        hidden = between[index](hidden) if index < len(between) else hidden
    return hidden
