"""The first steps of a transform: those that do the same to an image each time, and give images of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from PIL import Image

from fedvlp.data.files.images import Transform

COMPOSE = "torchvision.transforms.transforms.Compose"
# By name, since these classes need not be imported to be recognised.
FIXED = frozenset({
    "torchvision.transforms.transforms.Resize", "torchvision.transforms.transforms.CenterCrop",
    "open_clip.transform.MaybeConvertMode", "open_clip.transform.ResizeKeepRatio",
    "open_clip.transform.CenterCropOrPad",
})  # fmt: skip


@dataclass(frozen=True)
class FixedSteps:
    """The fixed first steps of a transform; for CLIP's own they resize the shorter side and cut out the centre.

    Attributes:
        steps: from a PIL image to a PIL image.
        rest: what is left of the transform: from there to a tensor.
        size: height and width of what the steps give.
    """

    steps: Any
    rest: Transform
    size: tuple[int, int]

    def __call__(self, image: Image.Image) -> Image.Image:
        """Returns the image after the steps."""
        return cast(Image.Image, self.steps(image))

    def describe(self) -> list[Any]:
        """Returns all settings of the steps, as JSON holds them."""
        described = []
        for step in self.steps.transforms:
            settings = sorted((name, repr(value)) for name, value in vars(step).items() if not name.startswith("_"))
            described.append([_kind(step), dict(settings)])
        return described


def fixed_steps(transform: Any) -> FixedSteps | None:
    """Returns the fixed first steps of a ``torchvision.transforms.Compose``; None if it does not begin with such."""
    if _kind(transform) != COMPOSE:
        return None
    steps = list(transform.transforms)
    count = next((i for i, step in enumerate(steps) if _kind(step) not in FIXED), len(steps))
    first = type(transform)(steps[:count])
    rest = type(transform)(steps[count:])
    # One wide and one tall image show whether all images come out in one size.
    sizes = {first(Image.new("RGB", size)).size for size in ((96, 64), (64, 96))}
    if len(sizes) > 1:  # the size follows the image's
        return None
    width, height = sizes.pop()
    return FixedSteps(first, rest, (height, width))


def _kind(step: Any) -> str:
    return f"{type(step).__module__}.{type(step).__qualname__}"
