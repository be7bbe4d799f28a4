"""Products with packed weights equal PyTorch's, and so do their gradients; where they do not serve, those are taken."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from fedvlp.clip import CLIPSpec, PromptedImageEncoder, PromptedTextEncoder
from fedvlp.clip.towers import packed_weights
from fedvlp.clip.towers.packed_weights import PackedWeights, multiply
from tests.helpers.text_features import NAMES, assert_same, features_and_gradient

needs_kernel = pytest.mark.skipif(not packed_weights.has_kernel(), reason="no oneDNN here")


@pytest.fixture
def used(monkeypatch):
    """The packs that products took, all weights being large enough."""
    monkeypatch.setattr(packed_weights, "_LEAST_ELEMENTS", 0)
    found = []
    get = PackedWeights.get

    def watched(self, weight, transposed):
        pack = get(self, weight, transposed)
        found.append(pack)
        return pack

    monkeypatch.setattr(PackedWeights, "get", watched)
    return found


def product(function, inputs, *arguments):
    """A product and its gradient with respect to the inputs."""
    inputs = inputs.clone().requires_grad_()
    output = function(inputs, *arguments)
    (output * torch.arange(output.numel()).view_as(output).cos()).sum().backward()
    return output.detach(), inputs.grad


@needs_kernel
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (2, 3, 24), (5, 4, 3, 24)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("part", [slice(None), slice(16), slice(16, None)])
def test_equals_the_plain_product(used, shape, has_bias, part):
    weight = torch.randn(48, 24)
    bias = torch.randn(48)[part] if has_bias else None
    inputs = torch.randn(shape)
    arguments = (weight[part], bias)
    found = product(PackedWeights().linear, inputs, *arguments)
    assert len(used) == 2
    for mine, plain in zip(found, product(linear, inputs, *arguments), strict=True):
        assert mine.shape == plain.shape
        assert torch.allclose(mine, plain, rtol=0, atol=1e-5)


@needs_kernel
def test_each_weight_is_packed_once_for_each_direction(used):
    packs = PackedWeights()
    weight = torch.randn(8, 6)
    for _ in range(3):
        product(packs.linear, torch.randn(2, 6), weight[:4], None)
        product(packs.linear, torch.randn(2, 6), weight, None)
    assert len({id(pack) for pack in used}) == len(packs) == 4 < len(used)


@needs_kernel
def test_a_changed_weight_is_packed_anew(used):
    packs = PackedWeights()
    weight = torch.randn(8, 6)
    inputs = torch.randn(3, 6)
    packs.linear(inputs, weight, None)
    weight.mul_(2)
    assert torch.allclose(packs.linear(inputs, weight, None), inputs @ weight.T, atol=1e-5)
    for _ in range(20):  # of which some would have the same address, were the packed ones not held
        weight = torch.randn(8, 6)
        assert torch.allclose(packs.linear(inputs, weight, None), inputs @ weight.T, atol=1e-5)


@needs_kernel
def test_gradients_of_gradients(used):
    weight = torch.randn(5, 4)
    inputs = torch.randn(3, 4, requires_grad=True)

    def curvature(function):
        (slope,) = torch.autograd.grad(function(inputs, weight, None).pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), inputs)[0]

    assert torch.allclose(curvature(PackedWeights().linear), curvature(linear), rtol=1e-4)
    assert len(used) == 4


@needs_kernel
def test_many_at_once(used):
    """Under vmap, whichever dimension is the batch's, a gradient included."""
    packs = PackedWeights()
    weight = torch.randn(5, 4)
    bias = torch.randn(5)
    inputs = torch.randn(3, 6, 4)

    def slope(function):
        gradient = torch.func.grad(lambda rows: function(rows, weight, bias).pow(2).sum())
        return torch.func.vmap(gradient, in_dims=1)(inputs)

    assert torch.allclose(slope(packs.linear), slope(linear), atol=1e-4)
    assert used


@needs_kernel
@pytest.mark.parametrize(
    "unfit",
    ["small", "trained", "double", "autocast", "switched off", "no kernel", "inference", "no rows"],
)
def test_else_the_product_is_pytorchs(used, unfit, monkeypatch):
    weight = torch.randn(8, 6)
    bias = torch.randn(8)
    inputs = torch.randn(3, 6)
    if unfit == "small":
        monkeypatch.setattr(packed_weights, "_LEAST_ELEMENTS", 49)
    if unfit == "trained":
        weight.requires_grad_()
    if unfit == "double":
        weight = weight.double()
        bias = bias.double()
        inputs = inputs.double()
    if unfit == "switched off":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    if unfit == "no kernel":
        monkeypatch.setattr(packed_weights, "has_kernel", lambda dtype: False)
    if unfit == "inference":
        with torch.inference_mode():
            weight = torch.randn(8, 6)
    if unfit == "no rows":
        inputs = inputs[:0]
    with torch.autocast("cpu", torch.bfloat16, enabled=unfit == "autocast"):
        found = PackedWeights().linear(inputs, weight, bias)
        plain = linear(inputs, weight, bias)
    assert found.dtype == plain.dtype
    assert torch.equal(found, plain)
    assert not used


@needs_kernel
@pytest.mark.parametrize("kind", ["vit", "custom", "quick"])
def test_towers_equal_those_that_are_not_packed(used, make_clip, configs, kind):
    """Features and gradients of both towers."""
    packed, plain = (make_clip(configs[kind], spec=CLIPSpec("custom", prepack=prepack)) for prepack in (True, False))
    signal = torch.randn(len(NAMES), 24)
    images = torch.rand(2, 3, 32, 32)
    text_prompt = torch.randn(4, 32)
    image_prompts = torch.randn(2, 3, 48)
    found = [
        (
            features_and_gradient(PromptedTextEncoder(clip, NAMES, prompt_length=4), text_prompt, signal),
            features_and_gradient(lambda prompts, clip=clip: image_features(clip, images, prompts), image_prompts, 1),
        )
        for clip in (packed, plain)
    ]
    assert used
    for mine, expected in zip(*found, strict=True):
        assert_same(mine, expected)
    number = len(used)
    image_features(plain, images, image_prompts)
    assert len(used) == number


def image_features(clip, images, prompts):
    return PromptedImageEncoder(clip)(images, prompts).features


@pytest.mark.parametrize("operator", ["_linear_pointwise", "_reorder_linear_weight"])
def test_other_operators_are_as_good_as_none(operator, monkeypatch):
    """They are not PyTorch's public ones, so a later release may lack them or change what they take."""

    def changed(*_):
        raise RuntimeError("expected at most 5 arguments")

    monkeypatch.setattr(torch.ops.mkldnn, operator, changed)
    assert not packed_weights.has_kernel.__wrapped__()


def test_a_weight_for_each_client_is_multiplied_plainly(used):
    weights = torch.randn(3, 8, 6)
    inputs = torch.randn(3, 5, 6)
    found = torch.func.vmap(PackedWeights().linear, in_dims=(0, 0, None))(inputs, weights, None)
    torch.testing.assert_close(found, inputs @ weights.mT)
    assert not used


def half_product(inputs, weight, bias=None):
    """The product of bfloat16 numbers in double precision: no sum is rounded."""
    exact = linear(inputs.bfloat16().double(), weight.double(), None if bias is None else bias.bfloat16().double())
    return exact.float()


@needs_kernel
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (2, 3, 24)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_weight_in_bfloat16_is_multiplied_in_bfloat16(used, shape, has_bias):
    """What comes out and goes back is rounded once, to 8 bits; inputs stay float32, and so do their gradients."""
    weight = torch.randn(48, 24).bfloat16()
    bias = torch.randn(48) if has_bias else None
    inputs = torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16, enabled=has_bias):
        found = product(PackedWeights().linear, inputs, weight, bias)
    plain = product(multiply, inputs, weight, bias)
    assert len(used) == 2
    assert found[0].dtype == plain[0].dtype == torch.bfloat16
    assert found[1].dtype == plain[1].dtype == torch.float32
    for mine in (found[0], plain[0]):
        torch.testing.assert_close(mine.float(), half_product(inputs, weight, bias), rtol=2**-7, atol=2**-6)
    slope = torch.arange(found[0].numel()).view_as(found[0]).cos()
    for mine in (found[1], plain[1]):
        torch.testing.assert_close(mine, half_product(slope, weight.T), rtol=2**-7, atol=2**-5)
