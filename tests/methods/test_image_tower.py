"""Methods on image towers of timm: each trains on suitable towers and rejects the others."""

from functools import partial

import pytest
import torch

from fedvlp import (
    CCST,
    HCVP,
    PLOT,
    SWAD,
    TRIP,
    DoPrompt,
    FedADG,
    FedDPT,
    FedMaPLe,
    FedMVP,
    FedOTP,
    FedSR,
    FineTuning,
    StableFDG,
)
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_image_towers import image_clip
from tests.helpers.slow import CLASSES, begin

DOMAINS = ["ink", "oil"]
LABELS = torch.tensor([0, 2, 1, 1])

PROMPTED = {
    "FedMaPLe": partial(FedMaPLe, depth=2),
    "TRIP": partial(TRIP, num_experts=2, prompt_length=2, templates=2),
    "experts": partial(TRIP, num_experts=2, prompt_length=2, templates=2, matched_to="experts"),
    "FedOTP": FedOTP,
    "PLOT": PLOT,
    "FedDPT": partial(FedDPT, domains=DOMAINS, prompt_length=2),
    "FedMVP": partial(FedMVP, heads=2, templates=2),
    "HCVP": HCVP,
    "DoPrompt": partial(DoPrompt, domains=DOMAINS),
}
TUNED = {"FineTuning": FineTuning, "SWAD": SWAD, "FedSR": FedSR, "FedADG": FedADG}
STYLED = {"CCST": partial(CCST, num_clients=2), "StableFDG": partial(StableFDG, num_clients=2)}


def assert_trains(module, clip):
    """Assert that a step gives every trained parameter a gradient."""
    images = torch.randn(4, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    begin(module, 0)
    module.train()
    inputs = {"images": images, "domain": torch.tensor([0, 1, 1, 0])}
    module.training_step((inputs, LABELS), 0).backward()
    for name, parameter in module.trainable_by_name().items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(parameter.grad.any() for parameter in module.trainable_by_name().values())
    assert all(parameter.grad is None for parameter in clip.parameters())


@pytest.mark.parametrize("index", range(4))
def test_methods_train_on_timms_vits(index):
    clip = image_clip(["siglip", "biomed", "eva02", "registers"][index])
    for method in [*PROMPTED.values(), *TUNED.values(), *STYLED.values()][index::4]:
        assert_trains(method(CLASSES, clip=clip), clip)


@pytest.mark.parametrize(("kind", "methods"), [("convnext", [SWAD, STYLED["CCST"]]), ("swin", [FineTuning])])
def test_towers_of_other_kinds_are_fine_tuned(kind, methods):
    clip = image_clip(kind)
    for method in methods:
        assert_trains(method(CLASSES, clip=clip), clip)


@pytest.mark.parametrize(("kind", "methods"), [("convnext", PROMPTED), ("swin", STYLED)])
def test_unsuitable_towers_are_rejected_before_training(kind, methods):
    clip = image_clip(kind)
    for method in methods.values():
        with pytest.raises(UserError, match=r"ConvNeXt|SwinTransformer"):
            method(CLASSES, clip=clip)
