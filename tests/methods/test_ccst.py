"""CCST: loss and gradients image by image and style by style, and the style that a client collects and uploads."""

import pytest
import torch

from fedvlp import CCST, FineTuning
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import CLASSES, assert_same, begin, slow_logits

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, client=1, **options):
    """Create a method that has the styles of clients 0, 1 and 3 of 4, and start one client."""
    torch.manual_seed(5)
    module = CCST(CLASSES, 4, clip, **options)
    for slot in (0, 1, 3):
        module.statistics.clients[slot].copy_(torch.rand_like(module.statistics.clients[slot]) + 0.1 * slot + 0.2)
    begin(module, client)
    return module


def slow_features(module, image, style, stage):
    """Encode one image block by block, and apply a style to its patches after one stage."""
    tower = module.image_tower
    tokens = tower.embed(image[None])
    for index in range(len(tower.blocks)):
        tokens = tower.blocks.run(index, tokens)
        if index == stage - 1 and style is not None:
            patches = tokens[0, 1:]
            constants = patches.detach()
            mean = sum(constants) / len(patches)
            deviation = (sum((row - mean) ** 2 for row in constants) / len(patches) + 1e-5).sqrt()
            changed = [style[1] * (patch - mean) / deviation + style[0] for patch in patches]
            tokens = torch.stack([tokens[0, 0], *changed])[None]
    return tower.pool(tokens)[0]


def slow_loss(module, images, slots, stage):
    losses = []
    for image, label, chosen in zip(images, LABELS.tolist(), slots.tolist(), strict=True):
        for slot in chosen:
            style = None if slot == module.statistics.slot else module.statistics.clients[slot]
            feature = slow_features(module, image, style, stage)
            losses.append(-slow_logits(module.clip, feature, module.text_features).log_softmax(0)[label])
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("styles", "stage"), [(1, 2), (2, 1)])
def test_loss_and_gradients_match_the_paper(clip, images, styles, stage, monkeypatch):
    module = make(clip, styles=styles, stage=stage)
    slots = torch.tensor([[3, 1], [0, 3], [1, 0], [0, 1]])[:, :styles]
    monkeypatch.setattr(CCST, "draw", lambda self, batch_size: slots)
    expected = slow_loss(module, images, slots, stage)
    assert_same(module.training_step((images, LABELS), 0), expected, list(module.trainable_by_name().values()))


def test_a_clients_style_covers_all_its_images(clip, images):
    """In any batches: mean and deviation over all patches of all images, without the class token."""
    module = make(clip, stage=1)
    module.training_step((images[:3], LABELS[:3]), 0)
    module.training_step((images[3:], LABELS[3:]), 1)
    tokens = module.image_tower.blocks.run(0, module.image_tower.embed(images)).detach()[:, 1:].flatten(0, 1)
    expected = torch.stack([tokens.mean(0), tokens.std(0, correction=0)])
    torch.testing.assert_close(module.statistics.own, expected, atol=1e-5, rtol=1e-5)
    begin(module, 1, phase=1)
    (phase,) = module.configure_phases()[1:]
    update = ClientUpdate(Client(1, 0, 4), module.upload_state(), 4)
    server = phase.aggregate(ServerState.start(module.shared_state()), [update])
    torch.testing.assert_close(server.shared["statistics.clients"][1], expected, atol=1e-5, rtol=1e-5)
    assert "statistics.clients" not in server.deployed
    begin(module, 1)
    assert not module.statistics.own.any()


def test_a_client_without_other_styles_fine_tunes(clip, images):
    method, plain = CCST(CLASSES, 4, clip), FineTuning(CLASSES, clip)
    begin(method, 2)
    assert torch.equal(method.training_step((images, LABELS), 0), plain.training_step((images, LABELS), 0))
    torch.testing.assert_close(method(images), plain(images))
