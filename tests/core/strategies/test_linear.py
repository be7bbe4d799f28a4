"""Which rules and strategies need no more than the weighted sum of uploads: it alone is what masked uploads keep.

Each pair of clients agrees on a mask, which one adds to its weighted upload and the other subtracts, so that the sum
stays and nothing else does.
"""

import pytest
import torch
from fedvlp.core.strategies.rules import shows_not_finite

from fedvlp.core.aggregation import (
    CoordinateMedian,
    DPFedAvg,
    FedAdam,
    FedGMA,
    FedYogi,
    Krum,
    MultiKrum,
    NormClipping,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)
from fedvlp.core.state import Client, ClientUpdate, ServerState, is_finite
from fedvlp.core.strategies import (
    ByName,
    DownloadOnly,
    FedAvg,
    IndicatorMean,
    Local,
    MovingAverage,
    ServerComputed,
    Slots,
    ema_share,
    is_linear,
)
from fedvlp.testing import check_aggregation_rule, check_strategy
from fedvlp.testing.uploads import masked

CLIENTS = [Client(id, id % 2, size, f"client {id}") for id, size in enumerate([7, 2, 9, 4, 3, 8])]
SIZES = {client.id: client.num_examples for client in CLIENTS}
SHAPE = (2, 3)
RULES = [
    WeightedMean(),
    ServerMomentum(0.5),
    FedAdam(),
    FedYogi(inner=ServerMomentum()),
    CoordinateMedian(),
    TrimmedMean(0.3),
    FedGMA(0.4),
    Krum(1),
    MultiKrum(1, 3),
    NormClipping(1.5),
    FedAdam(inner=NormClipping(1.5)),
    DPFedAvg(1.5, 0.1, expected_clients=6, seed=2),
    ServerMomentum(inner=CoordinateMedian()),
]
LINEAR_RULES = {"WeightedMean", "ServerMomentum", "FedAdam", "FedYogi"}


def name_of(rule):
    inner = getattr(rule, "inner", None)
    return type(rule).__name__ if inner is None or rule.is_linear else f"{type(rule).__name__}+{name_of(inner)}"


def draw(generator):
    return {name: torch.randn(SHAPE, generator=generator, dtype=torch.float64) for name in ("p", "q")}


def begun():
    """Returns what all clients go on from."""
    return draw(torch.Generator().manual_seed(6))


def sent():
    """Returns what each client sends; one leaves the first half of each tensor as it was."""
    generator = torch.Generator().manual_seed(4)
    uploads = {client.id: draw(generator) for client in CLIENTS}
    for name, value in begun().items():
        uploads[CLIENTS[2].id][name][0] = value[0]
    return uploads


def differs(one, other):
    """Whether two states differ by more than rounding in float32."""
    return any((one[name] - value).abs().max() > 1e-4 for name, value in other.items())


def rule_differs(rule, weights):
    plain, hidden = (list(states.values()) for states in (sent(), masked(sent(), weights)))
    results = [rule.combine(states, list(weights.values()), begun()) for states in (plain, hidden)]
    return differs(*results)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_rules_that_say_so_and_no_others_need_the_sum_alone(rule):
    assert rule.is_linear == (name_of(rule) in LINEAR_RULES)
    assert rule_differs(rule, SIZES) == (not rule.is_linear)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_every_rule_keeps_to_the_contract(rule):
    check_aggregation_rule(rule)


def test_masks_hide_every_upload():
    plain, hidden = sent(), masked(sent(), SIZES)
    for id, state in plain.items():
        assert differs(state, hidden[id])


def make(shared):
    return {"r": shared["p"] * shared["q"]}


AVERAGE = MovingAverage(FedAvg(), ema_share(0.75), ("p",))
STRATEGIES = {
    "FedAvg": (FedAvg(), True),
    "FedAvg uniform": (FedAvg("uniform"), True),
    "FedAvg with FedAdam": (FedAvg(rule=FedAdam()), True),
    "FedAvg with median": (FedAvg(rule=CoordinateMedian()), False),
    "MovingAverage": (AVERAGE, True),
    "MovingAverage, sent": (MovingAverage(FedAvg(), ema_share(0.75), ("p",), sends_average=True), True),
    "ServerComputed": (ServerComputed(FedAvg(), make), True),
    "DownloadOnly": (DownloadOnly(("p",), FedAvg()), True),
    "ByName": (ByName({"p": AVERAGE, "q": FedAvg()}), True),
    "ByName with Krum": (ByName({"p": FedAvg(), "q": FedAvg(rule=Krum(1))}), False),
    "ByName with IndicatorMean": (ByName({"p": FedAvg(), "q": IndicatorMean()}), False),
    "Local": (Local(), True),
    "Slots by domain": (Slots("domain"), False),
    "Slots by client": (Slots("client"), False),
    "ServerComputed of slots": (ServerComputed(Slots("domain"), make), False),
    "DownloadOnly of slots": (DownloadOnly(("p",), Slots("domain")), False),
    "MovingAverage of slots": (MovingAverage(Slots("domain"), ema_share(0.75), ("p",)), False),
    "IndicatorMean": (IndicatorMean(), False),
}


def start(strategy_name):
    """Returns a server whose tensors hold a slot a client where the strategy keeps slots."""
    slots = (len(CLIENTS),) if "lots" in strategy_name else ()
    return ServerState.start({name: value.expand(*slots, *SHAPE).clone() for name, value in begun().items()})


def server_after(strategy, server, uploads):
    updates = [ClientUpdate(client, uploads[client.id], client.num_examples) for client in CLIENTS]
    return strategy.aggregate(server, updates)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_that_say_so_and_no_others_need_the_sum_alone(name):
    strategy, expected = STRATEGIES[name]
    assert is_linear(strategy) == expected
    weights = dict.fromkeys(SIZES, 1) if name == "FedAvg uniform" else SIZES
    server = start(name)
    plain = server_after(strategy, server, sent())
    hidden = server_after(strategy, server, masked(sent(), weights))
    changes = [differs(getattr(plain, field), getattr(hidden, field)) for field in ("shared", "deployed", "memory")]
    assert any(changes) == (not expected)
    if name != "Local":
        assert differs(plain.shared, server.shared), "or nothing was combined, and nothing shown"


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_keeps_to_the_contract(name):
    server = start(name)
    if name.startswith("ServerComputed"):
        server = server.updated(make(server.shared))
    uploads = {id: {} for id in SIZES} if name == "Local" else sent()
    updates = [ClientUpdate(client, uploads[client.id], client.num_examples) for client in CLIENTS]
    check_strategy(STRATEGIES[name][0], server.shared, updates)


def test_strategy_that_says_nothing_is_not_linear():
    class Own:
        def broadcast(self, server, client):
            return server.shared

        def aggregate(self, server, updates):
            return server

        def check(self, clients):
            pass

    assert not is_linear(Own())


MEANS = {"FedAvg", "FedAvg uniform", "MovingAverage", "MovingAverage, sent", "ServerComputed", "DownloadOnly", "ByName"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_means_and_nothing_else_are_taken_to_show_what_is_not_finite(name):
    assert shows_not_finite(STRATEGIES[name][0]) == (name in MEANS)


@pytest.mark.parametrize("name", sorted(MEANS))
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_mean_shows_what_is_not_finite_whoever_sent_it(name, odd):
    for hostile in CLIENTS:
        updates: list[ClientUpdate] = []
        for client in CLIENTS:
            state = {"p": torch.rand(SHAPE), "q": torch.rand(SHAPE)}
            if client is hostile:
                state["q"][1, 2] = odd
            updates.append(ClientUpdate(client, state, client.num_examples))
        assert not is_finite(STRATEGIES[name][0].aggregate(start(name), updates).shared)
