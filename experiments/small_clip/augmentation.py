"""Makes many pictures of one icon: other colours, strokes and grounds, moved, as pixel art, and two side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

_WIDEST = 33  # squares of pixel art, and one more
_COARSEST = 14


@dataclass(frozen=True)
class Augmentation:
    """Random changes of pictures.

    Args:
        generator: Where they are drawn from.
        strength: From 0, black on white as drawn, to 1.
    """

    generator: torch.Generator
    strength: float

    def __call__(
        self, pictures: UInt8[Tensor, "B 64 64 5"], is_black: Bool[Tensor, "B"], pairs: int
    ) -> Float[Tensor, "B 3 64 64"]:
        """Returns pictures from 0 to 1.

        Args:
            pictures: Red, green, blue, opacity and filled outline.
            is_black: Which are black alone, and may have other colours, strokes and filled outlines.
            pairs: So many of the first get another picture, from the end, at their right.
        """
        layers = pictures.permute(0, 3, 1, 2).contiguous().float() / 255
        images = self.blend(self.move(self.ink(layers, is_black.view(-1, 1, 1, 1)), pairs), is_black.view(-1, 1, 1, 1))
        self.pixelate(images)
        return images.clamp(0, 1)

    def ink(self, layers: Float[Tensor, "B 5 64 64"], is_black: Bool[Tensor, "B 1 1 1"]) -> Float[Tensor, "B 5 64 64"]:
        """Returns layers with thicker or thinner strokes and other colours, which opacity multiplies."""
        colours = layers[:, :3]
        opacity = layers[:, 3:4]
        thicker = functional.max_pool2d(opacity, 3, 1, 1)
        thinner = -functional.max_pool2d(-opacity, 3, 1, 1)
        stroke = torch.where(self.sometimes(0.5, opacity), thicker, opacity.lerp(thinner, 0.6))
        opacity = opacity.lerp(stroke, self.random(opacity) * (is_black & self.sometimes(0.35, opacity)))
        tint = self.colour(opacity) * (0.6 + 0.4 * self.sometimes(0.4, opacity))
        black = torch.where(self.sometimes(0.45, opacity), tint, torch.zeros_like(tint))
        tinted = torch.where(self.sometimes(0.3, opacity), colours * (0.5 + 0.8 * tint), colours)
        colours = torch.where(is_black, black, tinted.clamp(max=1))
        return torch.cat([colours * opacity, opacity, layers[:, 4:]], dim=1)

    def move(self, layers: Float[Tensor, "B 5 64 64"], pairs: int) -> Float[Tensor, "B 5 64 64"]:
        """Returns layers turned, scaled, sheared, shifted and mirrored, and the first side by side with the last."""
        if self.strength == 0:
            return layers
        count = len(layers)
        spread = self.strength * (torch.rand(6, count, generator=self.generator) - 0.5)
        angle = 0.6 * spread[0]
        scale = 1 / (1 - 0.13 * self.strength + 0.5 * spread[1])
        mirror = torch.where(torch.rand(count, generator=self.generator) < 0.35 * self.strength, -1.0, 1.0)
        cosine = scale * angle.cos()
        sine = scale * angle.sin()
        across = torch.stack([cosine * mirror, 0.2 * spread[2] - sine, 0.25 * spread[3]], dim=1)
        down = torch.stack([sine * mirror, cosine * (1 + 0.3 * spread[4]), 0.25 * spread[5]], dim=1)
        affine = torch.stack([across, down], dim=1)
        moved = _sample(layers, affine)
        if pairs:
            half = affine * 1.9
            half[:, 0, 2] = 0.95 * mirror
            left = _sample(layers[:pairs], half[:pairs])
            half[:, 0, 2] = -0.95 * mirror
            right = _sample(layers[-pairs:], half[-pairs:])
            moved[:pairs] = torch.where(torch.arange(left.shape[3]) < left.shape[3] // 2, left, right.flip(0))
        return moved

    def blend(
        self, layers: Float[Tensor, "B 5 64 64"], is_black: Bool[Tensor, "B 1 1 1"]
    ) -> Float[Tensor, "B 3 64 64"]:
        """Returns layers on a ground: paper, perhaps the outline filled with a colour, and the ink on it."""
        colours = layers[:, :3]
        opacity = layers[:, 3:4]
        white = torch.ones(len(layers), 3, 1, 1)
        paper = torch.where(self.sometimes(0.12, opacity), 0.6 + 0.4 * self.colour(opacity), white)
        grey = 0.5 + 0.35 * self.random(opacity)
        fill = torch.where(self.sometimes(0.4, opacity), grey, self.colour(opacity))
        filled = layers[:, 4:] * (is_black & self.sometimes(0.3, opacity))
        images = paper.lerp(fill, filled) * (1 - opacity) + colours
        images = torch.where(self.sometimes(0.1, opacity), 1 - images, images)
        return torch.where(self.sometimes(0.08, opacity), images.mean(dim=1, keepdim=True), images)

    def pixelate(self, images: Float[Tensor, "B 3 64 64"]) -> None:
        """Makes some images pixel art in place, most of them with hard edges."""
        chosen = torch.randperm(len(images), generator=self.generator)[: int(0.12 * self.strength * len(images))]
        if not len(chosen):
            return
        squares = int(torch.randint(_COARSEST, _WIDEST, (1,), generator=self.generator))
        small = functional.adaptive_avg_pool2d(images[chosen], squares)
        small = torch.where(self.sometimes(0.7, small), (4 * small - 1.5).clamp(0, 1), small)
        images[chosen] = functional.interpolate(small, images.shape[-1], mode="nearest")

    def random(self, like: Tensor, channels: int = 1) -> Float[Tensor, "B channels 1 1"]:
        """Returns numbers from 0 to 1, one for each picture and channel."""
        return torch.rand(len(like), channels, 1, 1, generator=self.generator)

    def colour(self, like: Tensor) -> Float[Tensor, "B 3 1 1"]:
        """Returns a colour for each picture."""
        return self.random(like, 3)

    def sometimes(self, probability: float, like: Tensor) -> Bool[Tensor, "B 1 1 1"]:
        """Returns for which pictures something is done, with this probability at full strength."""
        return self.random(like) < probability * self.strength


def _sample(layers: Float[Tensor, "B 5 64 64"], affine: Float[Tensor, "B 2 3"]) -> Float[Tensor, "B 5 64 64"]:
    grid = functional.affine_grid(affine, list(layers.shape), align_corners=False)
    moved: Tensor = functional.grid_sample(layers, grid, align_corners=False)
    return moved
