"""The image towers of open_clip models, with their joint features and tokens: ViTs, ResNets, and all others."""

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

from fedvlp.clip.blocks import Between, Blocks, Branch, is_standard_block, with_branches
from fedvlp.clip.timm_blocks import TimmBlocks, pool_scores
from fedvlp.utils.errors import UserError


class ImageTower:
    """An image tower of any kind, of which joint features are read.

    It refers to the open_clip module, whose weights it neither copies nor changes.

    Args:
        visual: The open_clip model's `visual`.

    Attributes:
        image_size: V, the height and width of an image in pixels.
        num_tokens: P, the number of tokens of an image; None for towers whose tokens are not read.
        num_prefix: How many of them, the first, are no places of the image: a class token, registers, a mean.
        blocks: The transformer, of a ViT.
        stages: The four stages of a ResNet or ConvNeXt, whose last one puts out the last feature map.

    Raises:
        UserError: If it does not read square images.
    """

    num_tokens: int | None = None
    num_prefix: int = 0
    blocks: Blocks | None = None
    stages: Sequence[nn.Module] = ()

    def __init__(self, visual: nn.Module) -> None:
        self._visual: Any = visual
        size: Any = visual.image_size
        sides = {int(side) for side in size} if isinstance(size, (tuple, list)) else {int(size)}
        if len(sides) > 1:
            raise UserError(f"Images must be square, but this model reads {size}. Choose another --model.clip.name.")
        self.image_size = sides.pop()

    @property
    def kind(self) -> str:
        """The name of open_clip's or timm's class, for messages."""
        return type(self._visual.trunk if isinstance(self._visual, TimmModel) else self._visual).__name__

    @property
    def width(self) -> int:
        """W, the width of an image token."""
        return int(self._visual.trunk.num_features)

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised.

        Args:
            images: Pixels, as CLIP's transform puts them out.
            between: `between[j]` changes what stage j + 1 puts out: the tokens [B, P, W] of a ViT's block, or the
                feature map [B, channels, height, width] of one of the four stages of a ResNet or ConvNeXt.

        Raises:
            UserError: If there are fewer stages, or these cannot be run one by one.
        """
        if between:
            raise self._refusal(f"Features inside the image tower are changed in {_VITS}, ResNets and ConvNeXts")
        features: Tensor = self._visual(images)
        return features

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the image's tokens; refused if it is no ViT and no ResNet."""
        raise self._refusal(_TOKENS)

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, of tokens of the last block; refused if it is no ViT."""
        raise self._refusal(f"Single image tokens have joint features only in {_VITS}")

    def beside(self, branches: Mapping[int, Branch]) -> ImageTower:
        """Returns this tower with branches beside its blocks, refused if it has none: `with_branches`."""
        tower = copy(self)
        tower.blocks = with_branches(self.blocks, branches, self.kind)
        return tower

    def for_prompts(self) -> VisionTransformerTower:
        """Returns this tower, refused unless it is a ViT."""
        raise self._refusal(f"Image prompts are learned in {_VITS}")

    def for_tokens(self) -> ImageTower:
        """Returns this tower, refused if its tokens are not read."""
        if self.num_tokens is None:
            raise self._refusal(_TOKENS)
        return self

    def _refusal(self, rule: str, of_this: str = "") -> UserError:
        of_this = of_this or f"is {self.kind}"
        return UserError(f"{rule}, but this image tower {of_this}. Choose another --model.clip.name, such as ViT-B-16.")


class ResNetTower(ImageTower):
    """open_clip's ResNet; its tokens are the pixels of the last feature map behind their mean."""

    num_prefix = 1

    def __init__(self, visual: ModifiedResNet) -> None:
        super().__init__(visual)
        self.num_tokens = len(visual.attnpool.positional_embedding)
        self.stages = (visual.layer1, visual.layer2, visual.layer3, visual.layer4)

    @property
    def width(self) -> int:
        """W, the number of channels of the last feature map."""
        return int(self._visual.attnpool.k_proj.in_features)

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised; `between` changes feature maps as in `ImageTower.features`."""
        features: Tensor = self._visual.attnpool(_run_stages(self.stages, self._visual.stem(images), between))
        return features

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the tokens of the last feature map, without positions."""
        # In this order open_clip's attention pool reads them: the mean first.
        output = self._visual.forward_intermediates(images, indices=1)
        pixels = output["image_intermediates"][0].flatten(2).transpose(1, 2)  # [B, height * width, W]
        return output["image_features"], torch.cat([pixels.mean(dim=1, keepdim=True), pixels], dim=1)


class ConvNeXtTower(ImageTower):
    """timm's ConvNeXt; it has no tokens."""

    def __init__(self, visual: TimmModel) -> None:
        super().__init__(visual)
        self.stages = [*self._visual.trunk.stages]

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised; `between` changes feature maps as in `ImageTower.features`."""
        trunk = self._visual.trunk
        hidden = trunk.norm_pre(_run_stages(self.stages, trunk.stem(images), between))
        features: Tensor = self._visual.head(trunk.forward_head(hidden))
        return features


class VisionTransformerTower(ImageTower):
    """A ViT, in which prompts are learned; its tokens are the last block's output, first a class token if it has one.

    Prompts stand behind the image's own tokens and have no positions. What is pooled are the image's own tokens, on
    which prompts act in the blocks alone.

    Attributes:
        read: Which of an image's own tokens `pool` reads.
        reads_class_token: Whether the joint features are those of the class token alone.
    """

    blocks: Blocks
    num_tokens: int
    read: slice
    reads_class_token: bool

    def for_prompts(self) -> VisionTransformerTower:
        """Returns this tower, refused where image prompts cannot be learned in it."""
        return self

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised; `between` changes tokens as in `ImageTower.features`."""
        return self.pool(self._run(images, between))

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the output of the last block."""
        hidden = self._run(images)
        return self.pool(hidden), hidden

    @abstractmethod
    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Returns what goes into the first block: an image's tokens with positions, normalised if the ViT does so."""

    @abstractmethod
    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Returns a prompt as it goes into the first block: without positions, normalised if the ViT does so."""

    @abstractmethod
    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised, of the last block's output at an image's own tokens, or at `read`."""

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, of an image that had this token alone, in all places of tokens."""
        # Of equal tokens every kind of pool makes what it makes of one.
        alike = tokens.reshape(-1, 1, tokens.shape[-1]).expand(-1, self.num_prefix + 1, -1)
        features = self.pool(alike)
        return features.reshape(*tokens.shape[:-1], features.shape[-1])

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Returns how much the features read each prompt token: <q, k> / sqrt(head width), averaged over heads.

        Queries are those of the last block: the class token's, or the mean of the patches' where these are averaged. An
        attention pool has a query of its own, and the keys are those of the prompt tokens' last outputs there.

        Args:
            hidden: What goes into the last block, the prompt behind the image's own tokens.
        """
        queries = slice(0, 1) if self.reads_class_token else slice(self.num_prefix, self.num_tokens)
        return self.blocks.last_scores(hidden, queries, self._of_prompt(hidden))

    def _of_prompt(self, hidden: Tensor) -> Int[Tensor, "L"]:
        return torch.arange(self.num_tokens, hidden.shape[1], device=hidden.device)

    def _run(self, images: Tensor, between: Sequence[Between] = ()) -> Tensor:
        """Returns the output of the last block, [B, P, W]."""
        blocks = [partial(self.blocks.run, index) for index in range(len(self.blocks))]
        return _run_stages(blocks, self.embed(images), between)


class OpenClipTower(VisionTransformerTower):
    """open_clip's own ViT, which pools by its class token, by a mean or by attention."""

    num_prefix = 1

    def __init__(self, visual: VisionTransformer) -> None:
        super().__init__(visual)
        # The class token has a position, too.
        self.num_tokens = len(visual.positional_embedding)
        self.blocks = Blocks(visual.transformer)
        self.reads_class_token = visual.attn_pool is None and visual.pool_type == "tok"
        self.read = slice(1 if self.reads_class_token else self.num_tokens)

    @property
    def width(self) -> int:
        """W, the width of an image token."""
        return int(self._visual.conv1.out_channels)

    def for_prompts(self) -> VisionTransformerTower:
        """Returns this tower, refused where image prompts cannot be learned in it."""
        # The last block's keys are read, and the pool's.
        has_two_pools = getattr(self._visual, "attn_pool_contrastive", None) is not None
        if has_two_pools or not is_standard_block(self._visual.transformer.resblocks[-1]):
            rule = f"Image prompts are learned in {_VITS}"
            raise self._refusal(rule, "has attention of another kind than CLIP's")
        return self

    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Returns the class token and the patches, with positions, normalised."""
        # open_clip's private steps, so that tokens can be added and blocks run one by one between them.
        tokens: Tensor = self._visual._embeds(images)
        return tokens

    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Returns a prompt, normalised."""
        tokens: Tensor = self._visual.ln_pre(prompt)
        return tokens

    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised."""
        pooled: Tensor = self._visual._pool(tokens)[0]
        return self._to_joint_space(pooled)

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, of an image that had this token alone."""
        if self._visual.attn_pool is None:
            return self._to_joint_space(self._visual.ln_post(tokens))
        return super().project(tokens)

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Returns how much the features read each prompt token; of a pool's queries the first is read."""
        pool = self._visual.attn_pool
        if pool is None:
            return super().scores(hidden)
        outputs = self.blocks.run_last(hidden, self._of_prompt(hidden))
        attention = pool.attn
        weights = (attention.q_proj_weight, attention.k_proj_weight)
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)[:2]
        q_bias, k_bias, _ = attention.in_proj_bias.chunk(3)
        query = linear(pool.ln_q(pool.query[0]), weights[0], q_bias)
        products = linear(pool.ln_k(outputs), weights[1], k_bias) @ query
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def _to_joint_space(self, normalised: Tensor) -> Tensor:
        # Models without a projection have joint features of the tower's width.
        projection: Tensor | None = self._visual.proj
        return normalised if projection is None else normalised @ projection


class TimmTower(VisionTransformerTower):
    """A `VisionTransformer` or an `Eva` of timm: SigLIP's, EVA02, PE-Core, ViTamin, BiomedCLIP's and others.

    It has a class token or none, perhaps registers or rotary positions, and pools by the class token, by a mean or by
    attention.
    """

    def __init__(self, visual: TimmModel) -> None:
        super().__init__(visual)
        self._trunk: Any = visual.trunk
        self.num_prefix = self._trunk.num_prefix_tokens
        # open_clip gives one trunk, which has no positions, images of another size than timm made it for.
        rows, columns = self._trunk.patch_embed.dynamic_feat_size((self.image_size, self.image_size))
        self.num_tokens = rows * columns + self.num_prefix
        self.blocks = TimmBlocks(self._trunk)
        self.reads_class_token = self._trunk.attn_pool is None and self._trunk.global_pool == "token"
        self.read = slice(self.num_tokens)

    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Returns an image's tokens with their positions."""
        tokens = self._trunk._pos_embed(self._trunk.patch_embed(images))
        if isinstance(self._trunk, Eva):  # which returns its rotary positions as well
            tokens = tokens[0]
        return self.embed_prompt(tokens)

    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Returns a prompt, normalised where the trunk does so before its first block."""
        tokens: Tensor = self._trunk.norm_pre(prompt)
        return tokens

    def pool(self, tokens: Float[Tensor, "B own W"]) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised."""
        features: Tensor = self._visual.head(self._trunk.forward_head(self._trunk.norm(tokens)))
        return features

    def scores(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B L"]:
        """Returns how much the features read each prompt token."""
        pool = self._trunk.attn_pool
        if not isinstance(pool, AttentionPoolLatent):
            return super().scores(hidden)
        outputs = self.blocks.run_last(hidden, self._of_prompt(hidden))
        return pool_scores(pool, self._trunk.norm(outputs))


def make_image_tower(visual: nn.Module) -> ImageTower:
    """Returns the tower of open_clip's `visual`, by its kind; refused if it does not read square images."""
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
_TOKENS = f"Image tokens are read from {_VITS} and from open_clip's ResNets"


def _run_stages(stages: Sequence[Callable[[Tensor], Tensor]], hidden: Tensor, between: Sequence[Between]) -> Tensor:
    """Returns what the last stage puts out; each next one reads what was changed, as if that had been put out."""
    if len(between) > len(stages):
        raise UserError(f"Features of {len(between)} stages are to be changed, but the image tower has {len(stages)}.")
    for index, stage in enumerate(stages):
        hidden = stage(hidden)
        hidden = between[index](hidden) if index < len(between) else hidden
    return hidden
