"""The kinds of image towers, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedvlp.clip.towers.image_tower import ImageTower, ResNetTower, VisionTransformerTower, make_image_tower
from fedvlp.utils.errors import UserError


class Other(nn.Module):
    """An image tower that is neither of open_clip's two."""

    def __init__(self, image_size=32):
        super().__init__()
        self.image_size = image_size
        self.trunk = nn.Module()
        self.trunk.num_features = 7

    def forward(self, images):
        return images.mean(dim=(2, 3))


def test_each_kind_has_its_tower(clip, make_clip, configs):
    resnet = make_clip(configs["resnet"])
    assert type(clip.image) is VisionTransformerTower
    assert type(resnet.image) is ResNetTower
    assert (clip.image.kind, resnet.image.kind) == ("VisionTransformer", "ModifiedResNet")
    assert resnet.image.blocks is None
    assert resnet.image.last_stage is resnet.model.visual.layer4


def test_another_tower_has_features_alone():
    tower = make_image_tower(Other())
    assert type(tower) is ImageTower
    assert (tower.image_size, tower.width, tower.num_tokens) == (32, 7, None)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(tower.features(images), images.mean(dim=(2, 3)))
    with pytest.raises(UserError, match="this one is Other"):
        tower.encode(images)
    with pytest.raises(UserError, match="is a Other"):
        tower.for_prompts()


def test_images_must_be_square():
    assert make_image_tower(Other((24, 24))).image_size == 24
    with pytest.raises(UserError, match="must be square"):
        make_image_tower(Other((24, 32)))
