"""From a picture to CLIP's input: its own evaluation transform, and CoOp's augmentation for training."""

from __future__ import annotations

from collections.abc import Callable

from open_clip.transform import AugmentationCfg, PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip


def evaluation_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CLIP's own transform: bicubic resize of the shorter side, centre crop, RGB, CLIP's mean and deviation."""
    transform: Callable[[Image.Image], Tensor] = image_transform_v2(options, is_train=False)
    return transform


def training_transform(options: PreprocessCfg) -> Callable[[Image.Image], Tensor]:
    """Returns CoOp's augmentation: a bicubic crop of 8 to 100 % of the area, half of the pictures mirrored."""
    crop = image_transform_v2(options, is_train=True, aug_cfg=AugmentationCfg(scale=(0.08, 1.0)))
    transform: Callable[[Image.Image], Tensor] = Compose([RandomHorizontalFlip(), crop])
    return transform
