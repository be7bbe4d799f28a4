"""The image tower of an open_clip model: its sizes, its joint features, its tokens."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from fedvlp.clip.towers.blocks import Blocks
from fedvlp.utils.errors import UserError


class ImageTower:
    """A view on the image tower of an open_clip model; tokens are there for ViT and ResNet towers.

    Args:
        visual: The model's `visual`.

    Raises:
        UserError: If it does not read square images.
    """

    def __init__(self, visual: nn.Module) -> None:
        self._visual: Any = visual
        size: Any = visual.image_size
        sides = {int(side) for side in size} if isinstance(size, (tuple, list)) else {int(size)}
        if len(sides) > 1:
            raise UserError(f"Images must be square, but this model reads {size}. Choose another --model.clip.name.")
        self.image_size = sides.pop()

    @property
    def width(self) -> int:
        """W, the width of an image token."""
        if isinstance(self._visual, VisionTransformer):
            return int(self._visual.conv1.out_channels)
        if isinstance(self._visual, ModifiedResNet):
            return int(self._visual.attnpool.k_proj.in_features)
        return int(self._visual.trunk.num_features)

    @property
    def num_tokens(self) -> int | None:
        """P, the number of tokens of an image; None for towers whose tokens are not read."""
        if isinstance(self._visual, VisionTransformer):
            return len(self._visual.positional_embedding)
        if isinstance(self._visual, ModifiedResNet):
            return len(self._visual.attnpool.positional_embedding)
        return None

    def features(self, images: Float[Tensor, "B 3 height width"]) -> Float[Tensor, "B d"]:
        """Returns joint features, not normalised."""
        features: Tensor = self._run(images)[0] if isinstance(self._visual, VisionTransformer) else self._visual(images)
        return features

    def encode(self, images: Float[Tensor, "B 3 height width"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint features, not normalised, and the tokens of the last block (ViT) or feature map (ResNet).

        Raises:
            UserError: If the tower is neither a ViT nor a ResNet of open_clip.
        """
        if isinstance(self._visual, VisionTransformer):
            return self._run(images)
        if isinstance(self._visual, ModifiedResNet):
            output = self._visual.forward_intermediates(images, indices=1)
            pixels = output["image_intermediates"][0].flatten(2).transpose(1, 2)  # [B, height * width, W]
            return output["image_features"], torch.cat([pixels.mean(dim=1, keepdim=True), pixels], dim=1)
        raise UserError(
            "Image tokens are read from ViT and ResNet towers of open_clip, but this one is "
            f"{type(self._visual).__name__}. Choose another --model.clip.name, for example ViT-B-16."
        )

    def _run(self, images: Float[Tensor, "B 3 height width"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns a ViT's joint features and the output of its last block."""
        visual, blocks = self._visual, Blocks(self._visual.transformer)
        hidden = visual._embeds(images)
        for index in range(len(blocks)):
            hidden = blocks.run(index, hidden)
        pooled = visual._pool(hidden)[0]
        return pooled if visual.proj is None else pooled @ visual.proj, hidden
