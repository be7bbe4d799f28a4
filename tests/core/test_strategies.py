"""Strategies: values computed by hand, absent clients, empty domains, single clients, and purity."""

import copy
import math

import pytest
import scipy.stats
import torch

from fedvlp.core.phases import Phase
from fedvlp.core.slots import IndicatorMean, Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState, weighted_mean
from fedvlp.core.strategies import ByName, FedAvg, MovingAverage, ServerComputed, beta_share, ema_share
from fedvlp.utils.errors import UserError


def client(id, domain=None, examples=1):
    return Client(id, id if domain is None else domain, examples, name=str(id))


def update(client, **state):
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    return ClientUpdate(client, tensors, client.num_examples)


def server(**state):
    return ServerState.start({name: torch.tensor(value) for name, value in state.items()})


def test_average_is_taken_in_float32():
    halves = [{"p": torch.tensor([2049.0]).half()}, {"p": torch.tensor([2051.0]).half()}]
    assert weighted_mean(halves, [1, 1])["p"].dtype == torch.float16
    many = [{"p": torch.full((1,), 0.1, dtype=torch.bfloat16)}] * 1000
    assert weighted_mean(many, [1] * 1000)["p"].item() == pytest.approx(0.1, rel=5e-3)


def test_indicator_mean_equals_its_equation():
    """DiPrompT, Eq. 4, domain by domain."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 2, 3, generator=generator)
    sizes = [3, 10, 6]
    moved = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]])
    moves = torch.randn(3, 4, 2, 3, generator=generator) * moved[..., None, None]
    updates = [
        ClientUpdate(client(i, examples=size), {"prompts": start + moves[i]}, size) for i, size in enumerate(sizes)
    ]
    after = IndicatorMean().aggregate(ServerState.start({"prompts": start}), updates).shared["prompts"]
    for m in range(3):
        weights = [size * float(moved[i, m]) for i, size in enumerate(sizes)]
        change = sum(weight * moves[i, m] for i, weight in enumerate(weights)) / sum(weights)
        assert torch.allclose(after[m], start[m] + change, atol=1e-6)
    assert torch.equal(after[3], start[3])


@pytest.mark.parametrize("repeats_first", [False, True])
def test_beta_average_equals_the_weighted_mean_of_all_rounds(repeats_first):
    """DiPrompT, Eq. 5. In TRIP's released code, the start and round 0 have weight a_0, round t has a_t."""
    beta = 0.2
    rounds = 15
    values = torch.randn(rounds, generator=torch.Generator().manual_seed(3)).tolist()
    share = beta_share(beta, rounds, repeats_first=repeats_first)
    strategy = MovingAverage(FedAvg(), share, ("prompt",))
    state = server(prompt=[10.0])
    density = scipy.stats.beta(beta, beta).pdf
    total = density(0.5 / (rounds + 1))
    weighted = total * 10.0
    for number, value in enumerate(values):
        state = strategy.aggregate(state, [update(client(0), prompt=[value])])
        state = ServerState(state.shared, state.deployed, state.memory, number + 1)
        weight = density((number + (not repeats_first) + 0.5) / (rounds + 1))
        total += weight
        weighted += weight * value
        assert math.isclose(state.deployed["prompt"].item(), weighted / total, rel_tol=1e-5, abs_tol=1e-6)
    assert math.isclose(share(rounds - 1), 0.0785 if repeats_first else 0.1791, abs_tol=5e-5)


def test_a_broadcast_average_is_the_start_of_the_next_round():
    """DiPrompT, Eqs. 4 and 5: clients change the average, and an unchanged domain keeps it."""
    strategy = MovingAverage(IndicatorMean(), beta_share(1.0, 3), ("prompts",), sends_average=True)
    state = server(prompts=[[0.0], [0.3]])
    state = strategy.aggregate(state, [update(client(0), prompts=[[8.0], [0.3]])])
    assert state.shared["prompts"][0].item() == state.deployed["prompts"][0].item() == 4.0  # 0 + (8 - 0) / 2
    assert strategy.broadcast(state, client(0))["prompts"][0].item() == 4.0
    state = strategy.aggregate(
        ServerState(state.shared, state.deployed, state.memory, 1), [update(client(0), prompts=[[10.0], [0.3]])]
    )
    assert state.shared["prompts"][0].item() == 6.0  # 4 + (10 - 4) / 3
    assert torch.equal(state.shared["prompts"][1], torch.tensor([0.3]))


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: ByName({"p": FedAvg(), "q": s}), lambda s: MovingAverage(s, ema_share(0.5), ("p",))]
)
def test_slots_by_domain_reject_a_client_with_several_domains(wrap):
    clients = [Client(0, 0, 1, "one"), Client(1, -1, 1, "several")]
    with pytest.raises(UserError, match="1 of 2 clients have several domains, such as 'several'"):
        wrap(Slots(by="domain")).check(clients)
    wrap(Slots(by="domain")).check(clients[:1])
    wrap(Slots(by="client")).check(clients)


@pytest.mark.parametrize("by", ["client", "domain"])
def test_slots_must_cover_the_largest_id(by):
    clients = [client(id, domain) for id, domain in ((2, 2), (0, 1), (1, 0))]
    for enough in (None, 3, 4):
        Slots(by, slots=enough).check(clients)
        Slots(by, slots=enough).check([])
    with pytest.raises(UserError, match=f"2 slots, one per {by}, but 3 are needed"):
        Slots(by, slots=2).check(clients)


@pytest.mark.parametrize(
    ("strategy", "groups"),
    [
        (FedAvg(), {"": 4}),
        (Slots("client"), {}),
        (Slots("domain"), {"domain 0": 1, "domain 2": 2}),
        (IndicatorMean(), {"domain 0": 1, "domain 2": 2}),
    ],
)
def test_groups_count_the_uploads_that_are_combined(strategy, groups):
    assert strategy.groups([client(5, 2), client(1, 0), client(3, 2)], 4) == groups


def test_indicator_mean_groups_clients_of_several_domains_together():
    assert IndicatorMean().groups([client(5, 2), client(1, -1), client(3, 2)], 2) == {"": 2}
    assert IndicatorMean().groups([client(5, 2), client(1, 0)], 2) == {}


def total(shared):
    return {"total": shared["stack"].sum(0) * shared["factor"]}


@pytest.fixture
def stacked_server():
    return ServerState.start({"stack": torch.zeros(3, 2), "factor": torch.tensor(10.0), "total": torch.zeros(2)})


def test_derived_tensors_follow_every_aggregation(stacked_server):
    strategy = ServerComputed(Slots("client"), total)
    after = strategy.aggregate(
        stacked_server, [update(client(0), stack=[1.0, 2.0]), update(client(2), stack=[3.0, 5.0])]
    )
    assert after.shared["total"].tolist() == after.deployed["total"].tolist() == [40.0, 70.0]
    again = strategy.aggregate(after, [update(client(0), stack=[0.0, 0.0])])
    assert again.shared["total"].tolist() == [30.0, 50.0]


def test_a_phase_restricts_downloaded_and_deployed_tensors(stacked_server):
    strategy = ServerComputed(Slots("client"), total)
    phase = Phase("train", ("stack",), ("stack",), strategy, download=("total", "factor"), deploy=("total",))
    assert set(phase.broadcast(stacked_server, Client(0, 0, 1))) == {"total", "factor"}
    after = phase.aggregate(stacked_server, [update(client(1), stack=[1.0, 1.0])])
    assert set(after.deployed) == {"total"}
    assert set(after.shared) == {"stack", "factor", "total"}
    averaged = MovingAverage(strategy, ema_share(0.5), ("total",)).aggregate(
        after, [update(client(1), stack=[3.0, 3.0])]
    )
    assert averaged.deployed["total"].tolist() == [20.0, 20.0]
    assert phase.aggregate(stacked_server, []) is stacked_server


def test_aggregation_keeps_no_graph_and_changes_no_argument(stacked_server):
    weight = torch.ones(2, requires_grad=True)
    strategy = ServerComputed(Slots("client"), lambda shared: {"total": shared["stack"].sum(0) * weight})
    before = copy.deepcopy(stacked_server)
    after = strategy.aggregate(stacked_server, [update(client(0), stack=[1.0, 2.0])])
    assert not after.shared["total"].requires_grad
    assert all(torch.equal(stacked_server.shared[name], value) for name, value in before.shared.items())
