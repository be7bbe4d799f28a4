"""From a picture to CLIP's input: its own evaluation transform, and CoOp's augmentation for training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from open_clip.transform import AugmentationCfg, PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip

from fedvlp.utils.errors import UserError

_CHOICES = {
    "mode": ("RGB",),
    "interpolation": ("bicubic", "bilinear"),
    "resize_mode": ("shortest", "longest", "squash"),
}


def checked_options(published: Mapping[str, Any], image_size: int, origin: str) -> dict[str, Any]:
    """Returns the transform's options in a model's `preprocess_cfg`, so that a model is fed as it was trained.

    Args:
        published: Options by open_clip's names; what is null, or no option of the transform, is left out.
        image_size: The size in pixels that the model was built for.
        origin: Where the options are from, for the message.

    Raises:
        UserError: If an option asks for what the transform cannot do, or for another size.
    """
    known = {*PreprocessCfg.__annotations__} - {"size"}
    options = {name: value for name, value in published.items() if name in known and value is not None}
    for name, choices in _CHOICES.items():
        if options.get(name, choices[0]) not in choices:
            raise _unfit(origin, name, f"one of {', '.join(choices)}", options[name])
    for name in ("mean", "std"):
        if name in options:
            options[name] = _three_numbers(options[name], name, origin)
    size = published.get("size") or image_size
    if size not in (image_size, [image_size, image_size]):
        raise _unfit(origin, "size", f"{image_size}, the size that the model is built for", size)
    return options


def _three_numbers(value: Any, name: str, origin: str) -> tuple[float, ...]:
    """A mean or deviation for each colour; a deviation divides, so it is above 0."""
    least = 0.0 if name == "std" else -math.inf
    numbers = isinstance(value, (list, tuple)) and all(isinstance(number, (int, float)) for number in value)
    if not numbers or len(value) != 3 or not all(least < number < math.inf for number in value):
        raise _unfit(origin, name, "three finite numbers" + (" above 0" if name == "std" else ""), value)
    return tuple(float(number) for number in value)


def _unfit(origin: str, name: str, expected: str, found: Any) -> UserError:
    return UserError(
        f"The preprocess_cfg of {origin} has {name} {found!r}, but expected was {expected}. Give --model.clip.name the "
        "architecture of these weights, or correct the file."
    )


def evaluation_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CLIP's own transform: bicubic resize of the shorter side, centre crop, RGB, CLIP's mean and deviation."""
    transform: Callable[[Image.Image], Tensor] = image_transform_v2(options, is_train=False)
    return transform


def training_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CoOp's augmentation: a bicubic crop of 8 to 100 % of the area, half of the pictures mirrored."""
    crop = image_transform_v2(options, is_train=True, aug_cfg=AugmentationCfg(scale=(0.08, 1.0)))
    transform: Callable[[Image.Image], Tensor] = Compose([RandomHorizontalFlip(), crop])
    return transform
