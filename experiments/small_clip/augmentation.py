"""Augmentation of icons: colours, strokes, backgrounds, geometry, pixel art, and two icons side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

_WIDEST = 33  # squares of pixel art, plus one
_COARSEST = 14
_PIXEL_ART = 0.2  # share of the pictures
COLOURS = {
    "red": (0.85, 0.1, 0.1),
    "orange": (0.95, 0.5, 0.1),
    "yellow": (0.95, 0.85, 0.1),
    "green": (0.1, 0.65, 0.2),
    "blue": (0.1, 0.25, 0.9),
    "purple": (0.5, 0.1, 0.7),
    "pink": (0.95, 0.4, 0.7),
    "brown": (0.45, 0.25, 0.1),
}
LOOKS = (*COLOURS, "pixel art")
"""Names for the look of augmented pictures."""
_FARTHEST = 0.3  # maximum distance from a colour to get its name


@dataclass(frozen=True)
class Augmentation:
    """Random augmentation of pictures.

    Args:
        generator: Source of randomness.
        strength: From 0, black on white as drawn, to 1.
    """

    generator: torch.Generator
    strength: float

    def __call__(
        self, pictures: UInt8[Tensor, "B 64 64 5"], is_black: Bool[Tensor, "B"], pairs: int
    ) -> tuple[Float[Tensor, "B 3 64 64"], Int[Tensor, "B"]]:
        """Augment pictures; return images in [0, 1], and the look of each, an index of ``LOOKS`` or -1.

        Args:
            pictures: Red, green, blue, opacity and filled outline.
            is_black: Pictures that are only black, and may get other colours, strokes and filled outlines.
            pairs: Number of first pictures that get one of the last pictures at their right.
        """
        layers = pictures.permute(0, 3, 1, 2).contiguous().float() / 255
        black = is_black.view(-1, 1, 1, 1)
        layers, colours = self.ink(layers, black)
        images, shows_colours = self.blend(self.move(layers, pairs), black)
        looks = torch.where(shows_colours & is_black, named(colours), -1)
        looks[self.pixelate(images)] = LOOKS.index("pixel art")
        return images.clamp(0, 1), looks

    def ink(
        self, layers: Float[Tensor, "B 5 64 64"], is_black: Bool[Tensor, "B 1 1 1"]
    ) -> tuple[Float[Tensor, "B 5 64 64"], Float[Tensor, "B 3"]]:
        """Change strokes and colours; return the layers, premultiplied with opacity, and the colours of black ones."""
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
        return torch.cat([colours * opacity, opacity, layers[:, 4:]], dim=1), black.flatten(1)

    def move(self, layers: Float[Tensor, "B 5 64 64"], pairs: int) -> Float[Tensor, "B 5 64 64"]:
        """Rotate, scale, shear, shift and mirror layers, and put the first ones side by side with the last ones."""
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
    ) -> tuple[Float[Tensor, "B 3 64 64"], Bool[Tensor, "B"]]:
        """Put layers on paper, some with filled outline or inverted; mark those that still have the ink's colour."""
        colours = layers[:, :3]
        opacity = layers[:, 3:4]
        white = torch.ones(len(layers), 3, 1, 1)
        paper = torch.where(self.sometimes(0.12, opacity), 0.6 + 0.4 * self.colour(opacity), white)
        grey = 0.5 + 0.35 * self.random(opacity)
        fill = torch.where(self.sometimes(0.4, opacity), grey, self.colour(opacity))
        filled = layers[:, 4:] * (is_black & self.sometimes(0.3, opacity))
        images = paper.lerp(fill, filled) * (1 - opacity) + colours
        inverted = self.sometimes(0.1, opacity)
        images = torch.where(inverted, 1 - images, images)
        grey = self.sometimes(0.08, opacity)
        return torch.where(grey, images.mean(dim=1, keepdim=True), images), ~(inverted | grey).flatten()

    def pixelate(self, images: Float[Tensor, "B 3 64 64"]) -> Int[Tensor, "changed"]:
        """Turn some images into pixel art in place, most with hard edges; mark them."""
        chosen = torch.randperm(len(images), generator=self.generator)[: int(_PIXEL_ART * self.strength * len(images))]
        if not len(chosen):
            return chosen
        squares = int(torch.randint(_COARSEST, _WIDEST, (1,), generator=self.generator))
        small = functional.adaptive_avg_pool2d(images[chosen], squares)
        small = torch.where(self.sometimes(0.7, small), (4 * small - 1.5).clamp(0, 1), small)
        images[chosen] = functional.interpolate(small, images.shape[-1], mode="nearest")
        return chosen

    def random(self, like: Tensor, channels: int = 1) -> Float[Tensor, "B channels 1 1"]:
        """Draw uniform numbers in [0, 1], one per picture and channel."""
        return torch.rand(len(like), channels, 1, 1, generator=self.generator)

    def colour(self, like: Tensor) -> Float[Tensor, "B 3 1 1"]:
        """Draw a colour per picture."""
        return self.random(like, 3)

    def sometimes(self, probability: float, like: Tensor) -> Bool[Tensor, "B 1 1 1"]:
        """Draw the pictures to change, with this probability at full strength."""
        return self.random(like) < probability * self.strength


def named(colours: Float[Tensor, "B 3"]) -> Int[Tensor, "B"]:
    """Find the indices in ``LOOKS`` of colours; -1 if a colour is far from all."""
    distances = torch.cdist(colours, torch.tensor(list(COLOURS.values())))
    nearest = distances.min(dim=1)
    return torch.where(nearest.values < _FARTHEST, nearest.indices, -1)


def _sample(layers: Float[Tensor, "B 5 64 64"], affine: Float[Tensor, "B 2 3"]) -> Float[Tensor, "B 5 64 64"]:
    grid = functional.affine_grid(affine, list(layers.shape), align_corners=False)
    moved: Tensor = functional.grid_sample(layers, grid, align_corners=False)
    return moved
