"""Robust aggregators: loops over single numbers, invariances, and the limited influence of hostile uploads."""

import numpy as np
import pytest
import torch

from fedvlp.core.aggregation.base import WeightedMean
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import CoordinateMedian, FedGMA, Krum, MultiKrum, NormClipping, TrimmedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam, FedYogi, ServerMomentum
from fedvlp.testing import check_aggregator
from fedvlp.utils.digests import to_jsonable
from fedvlp.utils.errors import UserError

RULES = [
    WeightedMean(),
    CoordinateMedian(),
    TrimmedMean(0.3),
    FedGMA(0.5),
    Krum(2),
    MultiKrum(2, 3),
    NormClipping(1.5),
    NormClipping(1.5, TrimmedMean(0.2)),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: "+".join(map(str, to_jsonable(rule).values())))
BEFORE = {"prompt": torch.tensor([[0.5, -1.0, 2.0]]), "bias": torch.tensor([-0.25])}


def uploads(count, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    states = []
    for _ in range(count):
        moves = {name: spread * torch.randn(value.shape, generator=generator) for name, value in BEFORE.items()}
        states.append({name: value + moves[name] for name, value in BEFORE.items()})
    return states


def flat(state):
    return np.concatenate([state[name].double().numpy().ravel() for name in ("prompt", "bias")])


def make_weights(states):
    return [3 + 2 * (index % 3) for index in range(len(states))]


def combine(rule, states, before=BEFORE):
    return flat(rule.combine(states, make_weights(states), before))


def slow_trimmed(states, left_out):
    rows = np.stack([flat(state) for state in states])
    means = []
    for column in rows.T:
        middle = sorted(column)[left_out : len(column) - left_out]
        means.append(sum(middle) / len(middle))
    return np.asarray(means)


def slow_krum_order(states, byzantine):
    rows = [flat(state) for state in states]
    scores = []
    for index, row in enumerate(rows):
        distances = sorted(((row - other) ** 2).sum() for position, other in enumerate(rows) if position != index)
        scores.append(sum(distances[: len(rows) - byzantine - 2]))
    return sorted(range(len(rows)), key=lambda index: scores[index])


@pytest.mark.parametrize("count", [3, 4, 9, 10])
def test_median_matches_numpy(count):
    states = uploads(count)
    expected = np.median(np.stack([flat(state) for state in states]), axis=0)
    assert combine(CoordinateMedian(), states) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("share", "count", "left_out"), [(0.3, 10, 3), (0.29, 100, 29), (0.2, 9, 1), (0.45, 5, 2)])
def test_trimmed_mean_matches_a_loop(share, count, left_out):
    states = uploads(count)
    assert combine(TrimmedMean(share), states) == pytest.approx(slow_trimmed(states, left_out), abs=1e-6)


@pytest.mark.parametrize(("agreement", "rate"), [(0.4, 1.0), (0.75, 0.5), (1.0, 1.0)])
def test_masked_averaging_matches_a_loop(agreement, rate):
    states = uploads(9)
    weights = make_weights(states)
    start = flat(BEFORE)
    expected = []
    for index, before in enumerate(start):
        moves = [flat(state)[index] - before for state in states]
        agreed = abs(sum(1 if move > 0 else -1 for move in moves)) / len(moves)
        step = sum(weight * move for weight, move in zip(weights, moves, strict=True)) / sum(weights)
        expected.append(before + rate * (1.0 if agreed >= agreement else agreed) * step)
    assert combine(FedGMA(agreement, rate), states) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("count", "byzantine"), [(3, 0), (7, 2), (9, 2), (11, 4)])
def test_krum_matches_loops(count, byzantine):
    states = uploads(count, seed=count)
    order = slow_krum_order(states, byzantine)
    assert np.array_equal(combine(Krum(byzantine), states), flat(states[order[0]]))
    selected = count - byzantine - 1
    expected = np.mean([flat(states[index]) for index in order[:selected]], axis=0)
    assert combine(MultiKrum(byzantine, selected), states) == pytest.approx(expected, abs=1e-6)


def test_defaults_match_the_papers():
    """A changed default would change the results of every run that does not set the option."""
    mean = {"class": "WeightedMean"}
    moments = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "inner": mean}
    assert to_jsonable(TrimmedMean()) == {"class": "TrimmedMean", "share": 0.2}
    assert to_jsonable(FedGMA()) == {"class": "FedGMA", "agreement": 0.4, "learning_rate": 1.0}
    assert to_jsonable(NormClipping(3.0)) == {"class": "NormClipping", "max_norm": 3.0, "inner": mean}
    momentum = {"class": "ServerMomentum", "learning_rate": 1.0, "momentum": 0.9, "inner": mean}
    assert to_jsonable(ServerMomentum()) == momentum
    assert to_jsonable(FedAdam()) == {"class": "FedAdam", **moments}
    assert to_jsonable(FedYogi()) == {"class": "FedYogi", **moments}


def test_clipping_matches_a_loop():
    states = uploads(5)
    start = flat(BEFORE)
    moves = [flat(state) - start for state in states]
    norms = [np.sqrt((move**2).sum()) for move in moves]
    limit = sorted(norms)[2]
    short = [move / max(1, norm / limit) for move, norm in zip(moves, norms, strict=True)]
    expected = start + np.average(short, axis=0, weights=make_weights(states))
    assert combine(NormClipping(float(limit)), states) == pytest.approx(expected, abs=1e-6)
    assert not np.allclose(combine(WeightedMean(), states), expected, atol=1e-3)


@each_rule
def test_translating_all_tensors_translates_the_result(rule):
    states = uploads(7)
    by = {"prompt": torch.tensor([[4.0, -8.0, 0.5]]), "bias": torch.tensor([2.0])}
    moved = [{name: value + by[name] for name, value in state.items()} for state in states]
    before = {name: value + by[name] for name, value in BEFORE.items()}
    assert combine(rule, moved, before) == pytest.approx(combine(rule, states) + flat(by), abs=1e-5)


@pytest.mark.parametrize("count", [9, 10])
@pytest.mark.parametrize("hostile", [1e30, -1e30, 0.0])
def test_a_hostile_minority_cannot_move_the_result_out_of_the_honest_range(count, hostile):
    honest = uploads(count - 3, spread=0.1)
    sent = [*honest[:2], *({name: torch.full_like(v, hostile) for name, v in BEFORE.items()} for _ in range(3))]
    sent += honest[2:]
    rows = np.stack([flat(state) for state in honest])
    for rule in (CoordinateMedian(), TrimmedMean(0.34), Krum(3), MultiKrum(3, 4)):
        found = combine(rule, sent)
        assert (found >= rows.min(axis=0) - 1e-6).all(), rule
        assert (found <= rows.max(axis=0) + 1e-6).all(), rule
    worst = np.abs(combine(WeightedMean(), sent) - rows.mean(axis=0)).max()
    assert worst > 0.1, "the mean must leave the range, so that the test can fail"


@pytest.mark.parametrize("rule", [*RULES, DPFedAvg(1.5, 0.5, seed=3)])
def test_aggregators_satisfy_the_contract(rule):
    check_aggregator(rule)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (WeightedMean(), 1),
        (CoordinateMedian(), 3),
        (TrimmedMean(0.34), 3),
        (MultiKrum(2, 3), 7),
        (MultiKrum(1, 6), 7),
        (NormClipping(1.0, Krum(1)), 5),
    ],
)
def test_too_few_clients_are_rejected(rule, needed):
    rule.check(needed, "phase 'train'")
    assert rule.min_clients == needed
    if needed > 1:
        with pytest.raises(
            UserError, match=f"at least {needed} clients, but phase 'train' has {needed - 1} in a round"
        ):
            rule.check(needed - 1, "phase 'train'")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(0.5), "needs a share"),
        (lambda: TrimmedMean(0.0), "needs a share"),
        (lambda: FedGMA(1.5), "agreement"),
        (lambda: MultiKrum(1, 0), "selected"),
        (lambda: NormClipping(float("nan")), "max_norm"),
        (lambda: ServerMomentum(momentum=1.0), "momentum"),
        (lambda: FedYogi(beta2=1.0), "beta2"),
        (lambda: DPFedAvg(1.0, -0.5), "noise_multiplier"),
        (lambda: DPFedAvg(0.75, 0.5, noise_at="client", quantile=0.5), "noise_at client can't follow a quantile"),
    ],
)
def test_options_out_of_range_are_rejected(make, message):
    with pytest.raises(UserError, match=message):
        make()
