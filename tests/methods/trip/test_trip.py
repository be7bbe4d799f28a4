"""TRIP: its equations, written out image by image, and its limit cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedvlp import TRIP, PromptFL
from fedvlp.clip import zero_shot_text_features
from fedvlp.core.state import Client, ClientUpdate, ServerState
from tests.helpers.slow import cosine, plain_encoder

CLASSES = ["red circle", "star", "big square"]
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def trip(clip):
    torch.manual_seed(0)
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=5)
    with torch.no_grad():
        module.experts.mul_(20)  # larger, so that mixing has an effect
    return module


@pytest.mark.parametrize("training", [True, False])
def test_logits_use_each_images_own_mixture(trip, images, training):
    """Eqs. 8 and 9, one image and one class at a time, with sequences of the full context."""
    trip.train(training)
    constants = trip.precompute(images)
    plain = plain_encoder(trip.clip, CLASSES, prompt_length=5)
    weights = constants["train_weights" if training else "eval_weights"]
    expected = np.empty((6, 3))
    for i in range(6):
        mixture = sum(weights[i, m] * trip.experts[m] for m in range(3))
        text = plain(mixture).detach().numpy()
        for c in range(3):
            expected[i, c] = trip.clip.logit_scale * cosine(constants["features"][i].numpy(), text[c])
    assert np.allclose(trip(images).detach().numpy(), expected, atol=1e-3)


def test_loss_is_cross_entropy_and_divergence_from_the_teacher(trip, images):
    """Eq. 12, with a teacher averaged over 60 templates."""
    trip.train()
    text = zero_shot_text_features(trip.clip, CLASSES, 60).numpy()
    features = trip.precompute(images)["features"].numpy()
    teacher = softmax(np.array([[trip.clip.logit_scale * cosine(f, w) for w in text] for f in features]), axis=-1)
    student = softmax(trip(images).detach().double().numpy(), axis=-1)
    cross_entropy = -np.log(student[np.arange(6), LABELS]).mean()
    divergence = (teacher * (np.log(teacher) - np.log(student))).sum(1).mean()
    loss = trip.training_step((images, LABELS), 0)
    assert loss.item() == pytest.approx(cross_entropy + 0.8 * divergence, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"matched_to": "experts"}, {"routing": "learned_token"}])
def test_one_expert_equals_promptfl_with_the_divergence(clip, images, options):
    trip = TRIP(CLASSES, clip, num_experts=1, prompt_length=16, templates=2, **options).train()
    promptfl = PromptFL(CLASSES, clip, kl_weight=0.8, templates=2).train()
    promptfl.load_state({"prompt": trip.experts[0].detach()})
    assert torch.allclose(trip(images), promptfl(images), atol=1e-4)
    losses = [module.training_step((images, LABELS), 0) for module in (trip, promptfl)]
    balance = 0.01 if "learned" in options.get("routing", "") else 0  # for one expert, the loss is 1
    assert losses[0].item() == pytest.approx(losses[1].item() + balance, rel=1e-5)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(trip.experts.grad[0], promptfl.prompt.grad, rtol=1e-3, atol=1e-5)


def aggregate_rounds(module, value, rounds):
    """Aggregate one client's constant uploads over rounds, and return the deployed value."""
    server = ServerState.start({"experts": torch.zeros_like(module.experts)})
    (phase,) = module.configure_phases()
    for finished in range(rounds):
        upload = {"experts": torch.full_like(module.experts, value(finished))}
        server = phase.strategy.aggregate(server, [ClientUpdate(Client(0, 0, 5), upload, 5)])
        server = replace(server, round=finished + 1)
    assert server.shared["experts"].unique().item() == value(rounds - 1)
    return server.deployed["experts"].unique().item()


def test_server_averages_match_their_definitions(clip):
    """The deployed experts after four rounds with uploads of 1, 2, 3, 4, starting at 0."""
    averages = {kind: TRIP(CLASSES, clip, server_average=kind, rounds=4) for kind in ("none", "beta", "ema")}
    deployed = {kind: aggregate_rounds(module, lambda finished: finished + 1.0, 4) for kind, module in averages.items()}
    assert deployed["none"] == 4
    points = (np.array([0, 0, 1, 2, 3]) + 0.5) / 5  # the start and the first round weigh the same, as released
    densities = (points * (1 - points)) ** -0.8
    assert deployed["beta"] == pytest.approx((densities * np.arange(5)).sum() / densities.sum(), rel=1e-5)
    assert deployed["ema"] == pytest.approx(sum(0.01 * 0.99 ** (4 - r) * r for r in range(1, 5)), rel=1e-4)


def test_rounds_are_described_only_if_the_average_depends_on_them(clip):
    assert "rounds" not in TRIP(CLASSES, clip, rounds=3).describe()
    assert TRIP(CLASSES, clip, rounds=3, server_average="beta").describe()["rounds"] == 3
