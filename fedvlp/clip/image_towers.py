"""The image tower of an open_clip model, with its joint features and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from fedvlp.clip.blocks import Between, Blocks, is_standard_block
from fedvlp.utils.errors import UserError


class ImageTower:
    """An image tower of any kind, of which joint features are read.

    It refers to the open_clip module, whose weights it neither copies nor changes.

    Args:
        visual: The open_clip model's `visual`.

    Attributes:
        image_size: V, the height and width of an image in pixels.
        num_tokens: P, the number of tokens of an image; None for towers whose tokens are not read.
        blocks: The transformer, of a ViT of open_clip.

    Raises:
        UserError: If it does not read square images.
    """

    num_tokens: int | None = None
    blocks: Blocks | None = None

    def __init__(self, visual: nn.Module) -> None:
        self._visual: Any = visual
        size: Any = visual.image_size
        sides = {int(side) for side in size} if isinstance(size, (tuple, list)) else {int(size)}
        if len(sides) > 1:
            raise UserError(f"Images must be square, but this model reads {size}. Choose another --model.clip.name.")
        self.image_size = sides.pop()

    @property
    def kind(self) -> str:
        """The name of open_clip's class, for messages."""
        return type(self._visual).__name__

    @property
    def width(self) -> int:
        """W, the width of an image token."""
        return int(self._visual.trunk.num_features)

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised.

        Args:
            images: Pixels, as CLIP's transform puts them out.
            between: `between[j]` changes what stage j + 1 puts out: the tokens [B, P, W] of a ViT's block, or the
                feature map [B, channels, height, width] of one of a ResNet's four stages.

        Raises:
            UserError: If there are fewer stages, or these cannot be run one by one.
        """
        if between:
            raise UserError(
                "Features inside the image tower are changed in ViT and ResNet towers of open_clip, but this one is "
                f"{self.kind}. Choose another --model.clip.name, for example ViT-B-16."
            )
        features: Tensor = self._visual(images)
        return features

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the image's tokens; refused if it is no ViT and no ResNet."""
        raise UserError(
            f"Image tokens are read from ViT and ResNet towers of open_clip, but this one is {self.kind}. "
            "Choose another --model.clip.name, for example ViT-B-16."
        )

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, of tokens of the last block; refused if it is no ViT."""
        raise UserError(
            "Single image tokens have joint features in open_clip's ViT towers only, but this image tower is a "
            f"{self.kind}. Choose another --model.clip.name, for example ViT-B-16."
        )

    def for_prompts(self) -> VisionTransformerTower:
        """Returns this tower, refused unless it is a ViT that is read at its class token, with CLIP's attention."""
        raise _refusal(f"is a {self.kind}")


class ResNetTower(ImageTower):
    """open_clip's ResNet; its tokens are the pixels of the last feature map behind their mean."""

    def __init__(self, visual: ModifiedResNet) -> None:
        super().__init__(visual)
        self.num_tokens = len(visual.attnpool.positional_embedding)

    @property
    def width(self) -> int:
        """W, the number of channels of the last feature map."""
        return int(self._visual.attnpool.k_proj.in_features)

    @property
    def last_stage(self) -> nn.Module:
        """The layers that put out the last feature map, for example to put hooks on them."""
        stage: nn.Module = self._visual.layer4
        return stage

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised; `between` changes feature maps as in `ImageTower.features`."""
        visual = self._visual
        stages = (visual.layer1, visual.layer2, visual.layer3, visual.layer4)
        _check_stages(between, len(stages))
        hidden = visual.stem(images)
        for index, stage in enumerate(stages):
            hidden = stage(hidden)
            # The next stage reads what was changed, as if this one had put it out.
            hidden = between[index](hidden) if index < len(between) else hidden
        features: Tensor = visual.attnpool(hidden)
        return features

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the tokens of the last feature map, without positions."""
        # In this order open_clip's attention pool reads them: the mean first.
        output = self._visual.forward_intermediates(images, indices=1)
        pixels = output["image_intermediates"][0].flatten(2).transpose(1, 2)  # [B, height * width, W]
        return output["image_features"], torch.cat([pixels.mean(dim=1, keepdim=True), pixels], dim=1)


class VisionTransformerTower(ImageTower):
    """open_clip's ViT; its tokens are the output of the last block, the class token first."""

    blocks: Blocks

    def __init__(self, visual: VisionTransformer) -> None:
        super().__init__(visual)
        # The class token has a position, too.
        self.num_tokens = len(visual.positional_embedding)
        self.blocks = Blocks(visual.transformer)

    @property
    def width(self) -> int:
        """W, the width of an image token."""
        return int(self._visual.conv1.out_channels)

    @property
    def reads_class_token(self) -> bool:
        """Whether the joint features are those of the class token alone."""
        return self._visual.attn_pool is None and self._visual.pool_type == "tok"

    def for_prompts(self) -> VisionTransformerTower:
        """Returns this tower, refused where image prompts cannot be learned in it."""
        if self._visual.attn_pool is not None:
            raise _refusal("pools its tokens by attention")
        if not self.reads_class_token:
            raise _refusal(f"pools its tokens by '{self._visual.pool_type}'")
        # The last block's queries are run alone, and its keys are read.
        if not is_standard_block(self._visual.transformer.resblocks[-1]):
            raise _refusal("has attention of another kind than CLIP's")
        return self

    def features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised; `between` changes tokens as in `ImageTower.features`."""
        return self._pooled(self._run(images, between))

    def encode(self, images: Float[Tensor, "B 3 V V"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the output of the last block."""
        hidden = self._run(images)
        return self._pooled(hidden), hidden

    def embed(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B P W"]:
        """Returns what goes into the first block: the class token and the patches, with positions, normalised."""
        # open_clip's private steps, so that tokens can be added and blocks run one by one between them.
        tokens: Tensor = self._visual._embeds(images)
        return tokens

    def embed_prompt(self, prompt: Float[Tensor, "*batch L W"]) -> Float[Tensor, "*batch L W"]:
        """Returns a prompt as it goes into the first block: without positions, normalised."""
        tokens: Tensor = self._visual.ln_pre(prompt)
        return tokens

    def project(self, tokens: Float[Tensor, "*batch W"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, of the last block's output at some tokens."""
        return self._to_joint_space(self._visual.ln_post(tokens))

    def _run(self, images: Tensor, between: Sequence[Between] = ()) -> Tensor:
        """Returns the output of the last block, [B, P, W]."""
        _check_stages(between, len(self.blocks))
        hidden = self.embed(images)
        for index in range(len(self.blocks)):
            hidden = self.blocks.run(index, hidden)
            hidden = between[index](hidden) if index < len(between) else hidden
        return hidden

    def _pooled(self, hidden: Tensor) -> Tensor:
        """Returns joint features, not normalised, from the output of the last block."""
        pooled: Tensor = self._visual._pool(hidden)[0]
        return self._to_joint_space(pooled)

    def _to_joint_space(self, normalised: Tensor) -> Tensor:
        # Models without a projection have joint features of the tower's width.
        projection: Tensor | None = self._visual.proj
        return normalised if projection is None else normalised @ projection


def make_image_tower(visual: nn.Module) -> ImageTower:
    """Returns the tower of open_clip's `visual`, by its kind; refused if it does not read square images."""
    if isinstance(visual, VisionTransformer):
        return VisionTransformerTower(visual)
    if isinstance(visual, ModifiedResNet):
        return ResNetTower(visual)
    return ImageTower(visual)


def _refusal(reason: str) -> UserError:
    return UserError(
        "Image prompts are learned in CLIP's own vision transformer, but this model's image tower "
        f"{reason}. Choose another --model.clip.name, for example ViT-B-16."
    )


def _check_stages(between: Sequence[Between], stages: int) -> None:
    if len(between) > stages:
        raise UserError(f"Features of {len(between)} stages are to be changed, but the image tower has {stages}.")
