"""Noise that clients add themselves: against a loop in Python's own numbers, and by what must not change it."""

import math

import numpy as np
import pytest
import torch

from fedvlp.core.aggregation import DPFedAvg, FedAdam, NormClipping
from fedvlp.core.aggregation.base import ClientNoise
from fedvlp.core.aggregation.privacy import noised_upload, seeded_normals
from fedvlp.core.phases import client_noise
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import FedAvg
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

BEFORE = {"prompt": torch.tensor([[0.5, -1.0, 2.0]]), "bias": torch.tensor(-0.25), "other": torch.ones(7)}
LONG = {"prompt": torch.tensor([[4.5, 2.0, -7.0]]), "bias": torch.tensor(1.75)}
SHORT = {"prompt": torch.tensor([[0.6, -1.2, 2.0]]), "bias": torch.tensor(-0.25)}


def flat(state):
    return np.concatenate([state[name].double().numpy().ravel() for name in ("prompt", "bias")])


@pytest.mark.parametrize("upload", [LONG, SHORT])
def test_against_a_loop(upload):
    found = noised_upload(ClientNoise(clip_norm=0.75, noise_multiplier=0.5, seed=11), upload, BEFORE, client_seed=29)
    draw = seeded_normals(derive_seed(11, 29))
    normals = [*draw(3).tolist(), *draw(1).tolist()]
    move = [after - before for after, before in zip(flat(upload), flat(BEFORE), strict=True)]
    norm = math.sqrt(sum(number * number for number in move))
    shrink = 0.75 / norm if norm > 0.75 else 1.0
    expected = []
    for before, number, normal in zip(flat(BEFORE), move, normals, strict=True):
        expected.append(before + shrink * number + 0.5 * 0.75 * normal)
    assert flat(found) == pytest.approx(expected, abs=1e-6)
    assert found.keys() == upload.keys()
    assert found["prompt"].dtype == torch.float32


def test_noise_differs_between_clients_and_repeats_only_with_a_seed():
    noise = ClientNoise(0.75, 0.5, seed=11)
    one, again, other = (flat(noised_upload(noise, SHORT, BEFORE, seed)) for seed in (29, 29, 30))
    assert one.tolist() == again.tolist()
    assert not np.isclose(one, other).any()
    secret = ClientNoise(0.75, 0.5, seed=None)
    one, again = (flat(noised_upload(secret, SHORT, BEFORE, 29)) for _ in range(2))
    assert not np.isclose(one, again).any()


def test_spread_of_the_noise():
    before = {"p": torch.zeros(200, 100)}
    found = noised_upload(ClientNoise(0.5, 3.0, seed=4), before, before, 1)["p"]
    assert found.std().item() == pytest.approx(1.5, rel=0.02)
    assert found.mean().item() == pytest.approx(0.0, abs=0.05)


def test_the_server_takes_the_mean_of_what_arrives_over_a_fixed_number():
    rule = DPFedAvg(0.75, 0.5, noise_at="client", expected_clients=5, seed=3)
    found = rule.combine([LONG, SHORT], [9, 1], BEFORE)
    expected = flat(BEFORE) + (flat(LONG) + flat(SHORT) - 2 * flat(BEFORE)) / 5
    assert flat(found) == pytest.approx(expected, abs=1e-6)


def test_without_noise_it_matters_not_who_shortens():
    at_server, at_client = (
        DPFedAvg(0.75, 0.0, noise_at=where, expected_clients=5, seed=3) for where in ("server", "client")
    )
    assert at_server.client_noise is None
    sent = [noised_upload(at_client.client_noise, state, BEFORE, 8) for state in (LONG, SHORT)]
    found = at_client.combine(sent, [1, 1], BEFORE)
    expected = at_server.combine([LONG, SHORT], [1, 1], BEFORE)
    assert flat(found) == pytest.approx(flat(expected), abs=1e-6)


@pytest.mark.parametrize(
    "wrap", [lambda rule: rule, lambda rule: FedAdam(inner=rule), lambda rule: NormClipping(1, rule)]
)
def test_a_rule_around_it_leaves_the_clients_their_noise(wrap):
    rule = wrap(DPFedAvg(0.75, 0.5, noise_at="client")).bound(4, seed=3)
    assert rule.client_noise == client_noise(FedAvg(aggregator=rule)) == ClientNoise(0.75, 0.5, 3)
    assert rule.guarantee.is_local
    secret = wrap(DPFedAvg(0.75, 0.5, noise_at="client", noise_from="system")).bound(4, seed=3)
    assert secret.client_noise == ClientNoise(0.75, 0.5, None)
    assert client_noise(FedAvg()) is None
    assert client_noise(Slots("client")) is None


def test_a_quantile_needs_norms_that_the_server_does_not_see():
    with pytest.raises(UserError, match="noise_at client can't follow a quantile"):
        DPFedAvg(0.75, 0.5, noise_at="client", quantile=0.5)
