"""DP-FedAvg and client-side noise, compared with loops over single numbers."""

import itertools
import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

from fedvlp.core.aggregation.base import ClientNoise, PrivacyGuarantee
from fedvlp.core.aggregation.privacy import DPFedAvg, noised_upload, normal_draws
from fedvlp.core.aggregation.robust import CoordinateMedian, NormClipping
from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.core.phases import client_noise
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import FedAvg
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed


def test_draws_are_normal_and_independent():
    drawn = normal_draws(5)(40_000).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02
    assert stats.kstest(2 * drawn, "norm").pvalue < 1e-6, "the test must be able to fail"


def test_unseeded_draws_come_only_from_the_operating_system(monkeypatch):
    counts = []

    def urandom(count):
        counts.append(count)
        return np.random.default_rng(len(counts)).bytes(count)

    monkeypatch.setattr(os, "urandom", urandom)
    drawn = normal_draws(None)(20_000)
    assert counts == [160_000]
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 0.01


def test_seeded_draws_continue_without_repeating():
    draw = normal_draws(5)
    first, second = draw(6), draw(6)
    assert not torch.equal(first, second)
    assert torch.equal(torch.cat([first, second]), normal_draws(5)(12))


def test_extreme_random_words_give_finite_opposite_draws(monkeypatch):
    words = np.array([0, 2**64 - 1, 2**63], np.uint64).tobytes()
    monkeypatch.setattr(os, "urandom", lambda count: words)
    ends = normal_draws(None)(3)
    assert ends[0] == -ends[1]
    assert 8 < ends[1] < 9
    assert abs(ends[2]) < 1e-15


BEFORE = {"prompt": torch.tensor([[0.5, -1.0, 2.0]]), "bias": torch.tensor(-0.25)}
SENT = [
    {"prompt": torch.tensor([[0.6, -1.2, 2.0]]), "bias": torch.tensor(-0.25)},
    {"prompt": torch.tensor([[4.5, 2.0, -7.0]]), "bias": torch.tensor(1.75)},
    {"prompt": torch.tensor([[0.5, -1.0, 2.0]]), "bias": torch.tensor(-0.25)},
    {"prompt": torch.tensor([[0.0, -0.5, 2.5]]), "bias": torch.tensor(0.5)},
]
"""Two short updates, a long update, and a zero update."""
WIDE = {"p": torch.zeros(200, 100)}


def rule(clip_norm=1.0, noise_multiplier=0.0, expected_clients=5, seed=3, **options):
    return DPFedAvg(clip_norm, noise_multiplier, expected_clients=expected_clients, seed=seed, **options)


def flat(state):
    return np.concatenate([state[name].double().numpy().ravel() for name in state])


def slow_mean(states, clip_norm, clients):
    """Clip and sum updates in Python floats."""
    start = flat(BEFORE)
    total = [0.0] * len(start)
    for state in states:
        move = [after - before for after, before in zip(flat(state), start, strict=True)]
        norm = math.sqrt(sum(number * number for number in move))
        shrink = clip_norm / norm if norm > clip_norm else 1.0
        total = [sum_ + shrink * number for sum_, number in zip(total, move, strict=True)]
    return [before + number / clients for before, number in zip(start, total, strict=True)]


def update_norms(states):
    return [float(np.linalg.norm(flat(state) - flat(BEFORE))) for state in states]


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 50.0])
def test_the_mean_without_noise_matches_a_loop(clip_norm):
    found = rule(clip_norm).combine(SENT, [3, 1, 7, 2], BEFORE)
    assert flat(found) == pytest.approx(slow_mean(SENT, clip_norm, 5), abs=1e-6)


def test_no_client_changes_the_sum_by_more_than_the_clip_norm():
    far = {"prompt": torch.tensor([[-9e8, 3e8, 1e8]]), "bias": torch.tensor(7e8)}
    whole = flat(rule(0.5).combine(SENT, [1] * 4, BEFORE))
    without = flat(rule(0.5).combine([SENT[0], *SENT[2:]], [1] * 3, BEFORE))
    replaced = flat(rule(0.5).combine([SENT[0], far, *SENT[2:]], [1] * 4, BEFORE))
    assert 5 * np.linalg.norm(whole - without) == pytest.approx(0.5, rel=1e-5)
    assert 0.5 < 5 * np.linalg.norm(whole - replaced) <= 1.0 + 1e-6


def test_seeded_noise_repeats_and_system_noise_never():
    noisy = rule(noise_multiplier=1.0)
    first, memory = noisy.aggregate([WIDE], [1], WIDE, {})
    again, _ = noisy.aggregate([WIDE], [1], WIDE, {})
    second, _ = noisy.aggregate([WIDE], [1], WIDE, memory)
    other, _ = rule(noise_multiplier=1.0, seed=4).aggregate([WIDE], [1], WIDE, {})
    assert torch.equal(first["p"], again["p"])
    system = rule(noise_multiplier=1.0, noise_from="system", seed=None)
    secret, again = (system.aggregate([WIDE], [1], WIDE, {})[0] for _ in range(2))
    for one, different in ((first, second), (first, other), (secret, again)):
        assert abs(np.corrcoef(flat(one), flat(different))[0, 1]) < 0.05
    assert noisy.guarantee.repeats
    assert not system.guarantee.repeats


def slow_limits(clip_norm, quantile, rate, rounds):
    """Run Algorithm 1 of Andrew et al. without noise, with the same uploads in each round."""
    limits = [clip_norm]
    for _ in range(rounds):
        within = [1.0 if norm <= limits[-1] else 0.0 for norm in update_norms(SENT)]
        limits.append(limits[-1] * math.exp(-rate * (sum(within) / len(within) - quantile)))
    return limits


def test_the_clip_norm_follows_the_quantile_as_in_the_algorithm():
    adaptive = rule(6.0, quantile=0.6, clip_learning_rate=0.7, expected_clients=4)
    limits = slow_limits(6.0, 0.6, 0.7, rounds=4)
    memory = {}
    for before, after in itertools.pairwise(limits):
        made, memory = adaptive.aggregate(SENT, [1] * 4, BEFORE, memory)
        assert flat(made) == pytest.approx(slow_mean(SENT, before, 4), abs=1e-6)
        assert memory["clip_norm"].item() == pytest.approx(after, rel=1e-12)
    assert memory["draws"].item() == 4
    assert limits[-1] != limits[-2] != limits[0]


def test_a_missing_client_counts_as_half():
    adaptive = rule(6.0, quantile=0.25, clip_learning_rate=1.0, expected_clients=10)
    _, memory = adaptive.aggregate(SENT, [1] * 4, BEFORE, {})
    within = sum(norm <= 6.0 for norm in update_norms(SENT))
    share = (within + 6 * 0.5) / 10
    assert memory["clip_norm"].item() == pytest.approx(6.0 * math.exp(-(share - 0.25)))


def test_noise_is_split_between_count_and_updates_as_in_theorem_1():
    adaptive = rule(1.0, 0.9, quantile=0.5, count_noise=0.7, clip_learning_rate=1.0, expected_clients=8)
    multiplier = adaptive.update_noise_multiplier
    assert multiplier == pytest.approx((0.9**-2 - (2 * 0.7) ** -2) ** -0.5)
    # Together they equal one Gaussian with the requested noise: one client changes the count by at most 1 / 2.
    assert 1 / multiplier**2 + 0.25 / 0.7**2 == pytest.approx(1 / 0.9**2)
    made = adaptive.combine([WIDE], [1], WIDE)["p"]
    assert made.std().item() == pytest.approx(multiplier / 8, rel=0.02)


def test_noise_scales_with_the_adaptive_clip_norm():
    adaptive = rule(1.0, 0.9, quantile=0.9, count_noise=0.7, clip_learning_rate=2.0, expected_clients=8)
    _, memory = adaptive.aggregate([SENT[1]], [1], BEFORE, {})
    limit = memory["clip_norm"].item()
    assert limit > 1.5
    made, _ = adaptive.aggregate([WIDE], [1], WIDE, memory)
    assert made["p"].std().item() == pytest.approx(adaptive.update_noise_multiplier * limit / 8, rel=0.02)


def test_the_count_has_separate_noise():
    shares = []
    for seed in range(250):
        adaptive = rule(1.0, 0.9, seed=seed, quantile=0.5, count_noise=0.7, clip_learning_rate=1.0, expected_clients=8)
        _, memory = adaptive.aggregate(SENT, [1] * 4, BEFORE, {})
        shares.append(0.5 - math.log(memory["clip_norm"].item()))
    within = sum(norm <= 1.0 for norm in update_norms(SENT))
    assert np.mean(shares) == pytest.approx((within + 4 * 0.5) / 8, abs=0.015)
    assert np.std(shares) == pytest.approx(0.7 / 8, rel=0.1)


def test_too_little_noise_on_the_count_is_rejected():
    with pytest.raises(UserError, match=r"above half the noise_multiplier of 1; got 0\.5\. Set count_noise to 1"):
        rule(1.0, 1.0, quantile=0.5, expected_clients=10)
    unbound = DPFedAvg(1.0, 1.0, quantile=0.5)
    with pytest.raises(UserError, match="count_noise"):
        unbound.bind(10, seed=0)
    assert unbound.bind(11, seed=0).expected_clients == 11
    rule(1.0, 0.0, quantile=0.5)


def test_bind_sets_only_missing_options():
    bound = DPFedAvg(1.0, 0.5).bind(7, seed=11)
    assert (bound.expected_clients, bound.seed) == (7, 11)
    given = DPFedAvg(1.0, 0.5, expected_clients=3, seed=2).bind(7, seed=11)
    assert (given.expected_clients, given.seed) == (3, 2)
    assert DPFedAvg(1.0, 0.5, noise_from="system").bind(7, seed=11).seed is None


@pytest.mark.parametrize("wrap", [lambda inner: FedAdam(inner=inner), lambda inner: NormClipping(2.0, inner)])
def test_outer_aggregators_keep_the_guarantee_and_bind_the_inner_one(wrap):
    wrapped = wrap(DPFedAvg(1.0, 0.75, delta=1e-6)).bind(7, seed=11)
    assert wrapped.guarantee == PrivacyGuarantee(0.75, 1e-6, True)
    assert wrapped.inner == DPFedAvg(1.0, 0.75, delta=1e-6, expected_clients=7, seed=11)
    assert not wrapped.is_linear
    assert type(wrapped) is type(wrap(CoordinateMedian()))
    assert wrap(CoordinateMedian()).guarantee is None


def test_missing_options_outside_a_federation_are_named():
    with pytest.raises(UserError, match="Set expected_clients"):
        DPFedAvg(1.0, 0.0, seed=3).combine(SENT, [1] * 4, BEFORE)
    with pytest.raises(UserError, match="Set seed, or noise_from to system"):
        DPFedAvg(1.0, 0.5, expected_clients=4).combine(SENT, [1] * 4, BEFORE)


START = {**BEFORE, "other": torch.ones(7)}
SHORT, LONG = SENT[:2]


@pytest.mark.parametrize("upload", [LONG, SHORT])
def test_a_noised_upload_matches_a_loop(upload):
    found = noised_upload(ClientNoise(clip_norm=0.75, noise_multiplier=0.5, seed=11), upload, START, client_seed=29)
    draw = normal_draws(derive_seed(11, 29))
    drawn = [*draw(3).tolist(), *draw(1).tolist()]
    move = [after - before for after, before in zip(flat(upload), flat(BEFORE), strict=True)]
    norm = math.sqrt(sum(number * number for number in move))
    shrink = 0.75 / norm if norm > 0.75 else 1.0
    expected = []
    for before, number, normal in zip(flat(BEFORE), move, drawn, strict=True):
        expected.append(before + shrink * number + 0.5 * 0.75 * normal)
    assert flat(found) == pytest.approx(expected, abs=1e-6)
    assert found.keys() == upload.keys()
    assert found["prompt"].dtype == torch.float32


def test_noise_differs_between_clients_and_repeats_only_with_a_seed():
    noise = ClientNoise(0.75, 0.5, seed=11)
    one, again, other = (flat(noised_upload(noise, SHORT, START, seed)) for seed in (29, 29, 30))
    assert one.tolist() == again.tolist()
    assert not np.isclose(one, other).any()
    secret = ClientNoise(0.75, 0.5, seed=None)
    one, again = (flat(noised_upload(secret, SHORT, START, 29)) for _ in range(2))
    assert not np.isclose(one, again).any()


def test_an_update_with_nan_is_not_uploaded_unclipped():
    poisoned = {**LONG, "other": START["other"].index_fill(0, torch.tensor([3]), math.nan)}
    found = noised_upload(ClientNoise(1e-6, 0.5, seed=None), poisoned, START, 29)
    assert np.isnan(flat(found)).all()


def test_the_server_divides_the_sum_by_a_fixed_number_of_clients():
    rule = DPFedAvg(0.75, 0.5, noise_at="client", expected_clients=5, seed=3)
    found = rule.combine([LONG, SHORT], [9, 1], START)
    expected = flat(BEFORE) + (flat(LONG) + flat(SHORT) - 2 * flat(BEFORE)) / 5
    assert flat(found) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "wrap", [lambda rule: rule, lambda rule: FedAdam(inner=rule), lambda rule: NormClipping(1, rule)]
)
def test_outer_aggregators_keep_noise_at_clients(wrap):
    rule = wrap(DPFedAvg(0.75, 0.5, noise_at="client")).bind(4, seed=3)
    assert rule.client_noise == client_noise(FedAvg(aggregator=rule)) == ClientNoise(0.75, 0.5, 3)
    assert rule.guarantee.is_local
    secret = wrap(DPFedAvg(0.75, 0.5, noise_at="client", noise_from="system")).bind(4, seed=3)
    assert secret.client_noise == ClientNoise(0.75, 0.5, None)
    assert client_noise(FedAvg()) is None
    assert client_noise(Slots("client")) is None
