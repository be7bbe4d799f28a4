"""pFedMMA's adapters block by block beside CLIP's own modules, what both towers share, and what stays the same."""

from __future__ import annotations

import pytest
import torch

from fedvlp import PFedMMA, ZeroShotCLIP
from fedvlp.clip import cosine_logits
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import assert_same, cosine

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([2, 0, 1, 2])
RANK = 5


def make(clip, **options):
    torch.manual_seed(3)
    module = PFedMMA(CLASSES, clip, **{"rank": RANK, "alpha": 2.0, **options})
    with torch.no_grad():
        for parameter in module.trainable_by_name().values():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


@pytest.fixture
def method(clip):
    return make(clip, depth=2)


def slow_adapter(method, tower, number, vector):
    """One token, one hidden unit after another."""
    for maps in (method.down[tower], method.shared):
        rows = zip(maps.weight[number], maps.bias[number], strict=True)
        vector = torch.stack([(row @ vector + bias).clamp_min(0) for row, bias in rows])
    maps = method.up[tower]
    return maps.weight[number] @ vector + maps.bias[number]


def slow_blocks(method, tower, blocks, hidden, mask=None):
    """CLIP's own modules for one sequence [tokens, width]; the last two blocks have adapters."""
    for index, block in enumerate(blocks):
        number = index - len(blocks) + 2
        beside = 0
        if number >= 0:
            beside = torch.stack([slow_adapter(method, tower, number, block.ln_1(token)) for token in hidden])
        hidden = block(hidden[None], attn_mask=mask)[0] + method.alpha * beside
    return hidden


def slow_text(method, name):
    model = method.clip.model
    ids = method.clip.tokenizer([f"a photo of a {name}."])[0]
    tokens = model.token_embedding(ids) + model.positional_embedding
    tokens = slow_blocks(method, "text", model.transformer.resblocks, tokens, model.attn_mask)
    return model.ln_final(tokens[ids.argmax()]) @ model.text_projection


def slow_image(method, image):
    visual = method.clip.model.visual
    patches = visual.conv1(image[None]).flatten(2)[0].T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    tokens = slow_blocks(method, "image", visual.transformer.resblocks, visual.ln_pre(tokens))
    return visual.ln_post(tokens[0]) @ visual.proj


def slow_loss(method, images):
    texts = [slow_text(method, name) for name in CLASSES]
    loss = 0
    for image, label in zip(images, LABELS, strict=True):
        feature = slow_image(method, image)
        logits = torch.stack([method.clip.logit_scale * cosine(feature, text) for text in texts])
        loss = loss - logits.log_softmax(0)[label] / len(LABELS)
    return loss


def test_maps_start_as_in_the_released_code(clip):
    """Normal with the variance 2 / outputs: ``kaiming_normal_`` with ``mode="fan_out"``."""
    torch.manual_seed(0)
    method = PFedMMA(CLASSES, clip)
    for maps in [*method.down.values(), method.shared, *method.up.values()]:
        _, outputs, _ = maps.weight.shape
        assert maps.weight.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=0.06)
        assert maps.weight.mean().item() == pytest.approx(0, abs=0.01)
        assert not maps.bias.any()


def test_loss_and_gradients_are_those_of_the_equations(method, images):
    loss = method.training_step((images, LABELS), 0)
    parameters = list(method.trainable_by_name().values())
    assert len(parameters) == 10
    gradients = assert_same(loss, slow_loss(method, images), parameters)
    assert all(gradient.any() for gradient in gradients)
    assert not torch.allclose(method(images), zero_shot(method, images), atol=0.5)


def zero_shot(method, images):
    """As CLIP's towers compute them, without any branch."""
    clip = method.clip
    return cosine_logits(clip.encode_image(images), method.rows.encode_words(clip.text), clip.logit_scale)


def test_without_adapters_it_is_zero_shot_clip(clip, images):
    method = make(clip, alpha=0.0)
    assert torch.equal(method(images), zero_shot(method, images))
    torch.testing.assert_close(method(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_the_shared_part_alone_is_zero_shot_clip(method, images):
    """Also where the texts with adapters were just encoded."""
    own = method(images)
    with method.shared_part_alone():
        assert torch.equal(method(images), zero_shot(method, images))
    assert torch.equal(method(images), own)


@torch.no_grad()
def test_hidden_units_have_no_order_but_the_same_one_in_both_towers(method, images):
    expected = method(images)
    order = torch.tensor([3, 0, 4, 1, 2])
    method.shared.weight.copy_(method.shared.weight[:, :, order])
    for tower in ("text", "image"):
        assert not torch.allclose(method(images), expected, atol=0.1)
        maps = method.down[tower]
        maps.weight.copy_(maps.weight[:, order])
        maps.bias.copy_(maps.bias[:, order])
    torch.testing.assert_close(method(images), expected, atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_what_the_server_sends_leaves_personal_maps_alone(clip):
    method = make(clip)
    client = Client(0, 0, 3)
    before = {name: value.clone() for name, value in method.communicable_state().items()}
    (phase,) = method.configure_phases()
    upload = {name: -value for name, value in method.shared_state().items()}
    server = phase.aggregate(ServerState.start(method.shared_state()), [ClientUpdate(client, upload, 3)])
    method.load_state(phase.broadcast(server, client))
    for name, value in method.communicable_state().items():
        assert torch.equal(value, -before[name] if name.startswith("shared.") else before[name])
