"""The kinds of image towers, and the errors of unsupported towers."""

import pytest
import torch
from torch import nn

from fedvlp.clip.image_towers import ImageTower, OpenClipTower, ResNetTower, make_image_tower
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_image_towers import image_clip


class Other(nn.Module):
    """An image tower that is neither a ViT nor a ResNet of open_clip."""

    def __init__(self, image_size=32):
        super().__init__()
        self.image_size = image_size
        self.trunk = nn.Module()
        self.trunk.num_features = 7

    def forward(self, images):
        return images.mean(dim=(2, 3))


def test_each_kind_has_its_tower(clip, make_clip, configs):
    resnet = make_clip(configs["resnet"])
    assert type(clip.image) is OpenClipTower
    assert type(resnet.image) is ResNetTower
    assert (clip.image.kind, resnet.image.kind) == ("VisionTransformer", "ModifiedResNet")
    assert resnet.image.blocks is None
    assert resnet.image.stages[-1] is resnet.model.visual.layer4


def test_other_towers_have_only_features():
    tower = make_image_tower(Other())
    assert type(tower) is ImageTower
    assert (tower.image_size, tower.width, tower.num_tokens) == (32, 7, None)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(tower.features(images), images.mean(dim=(2, 3)))
    changed = lambda: tower.features(images, [lambda hidden: hidden])  # noqa: E731
    for refused in (lambda: tower.encode(images), changed, tower.require_prompts):
        with pytest.raises(UserError, match="tower is Other"):
            refused()


def test_images_must_be_square():
    assert make_image_tower(Other((24, 24))).image_size == 24
    with pytest.raises(UserError, match="must be square"):
        make_image_tower(Other((24, 32)))


@pytest.mark.parametrize(("kind", "stages"), [("vit", 2), ("resnet", 4), ("eva02", 2), ("convnext", 4)])
def test_outputs_of_stages_can_be_changed(make_clip, configs, kind, stages):
    """Compare with hooks on open_clip's own modules in its own forward pass."""
    clip = make_clip(configs[kind]) if kind in configs else image_clip(kind)
    visual = clip.model.visual
    layers = {
        "vit": lambda: visual.transformer.resblocks,
        "resnet": lambda: [visual.layer1, visual.layer2, visual.layer3, visual.layer4],
        "eva02": lambda: visual.trunk.blocks,
        "convnext": lambda: visual.trunk.stages,
    }[kind]()
    images = torch.randn(2, 3, clip.image_size, clip.image_size)
    changes = [
        lambda hidden, factor=factor: hidden.roll(1, -1) * factor - 0.5 for factor in (1.5, 0.75, 2.0, 1.25)[:stages]
    ]
    for count in range(stages + 1):
        pairs = list(zip(layers, changes, strict=False))[:count]
        handles = [
            layer.register_forward_hook(lambda _, __, out, change=change: change(out)) for layer, change in pairs
        ]
        expected = visual(images)
        for handle in handles:
            handle.remove()
        found = clip.image.features(images, changes[:count])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, clip.encode_image(images), atol=1e-2)
    with pytest.raises(UserError, match=f"at most {stages} stages of the image tower; got {stages + 1}"):
        clip.image.features(images, [*changes, changes[0]])
