"""Binding of aggregators to phases, the uploads that they need, and private phases."""

from dataclasses import dataclass

import pytest
import torch

from fedvlp.core.aggregation.base import WeightedMean
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import CoordinateMedian, Krum, TrimmedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam, ServerMomentum
from fedvlp.core.phases import Phase, bind_aggregators, most_needed_uploads, privacy_guarantees, too_few_uploads
from fedvlp.core.slots import IndicatorMean, Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.core.strategies import ByName, FedAvg, Local, MovingAverage, ServerComputed, Wrapper, ema_share
from fedvlp.utils.errors import UserError

CLIENTS = [Client(id, id // 3, 2 + id, f"client {id}") for id in range(6)]
ONE_PER_DOMAIN = [Client(id, id, 2 + id, f"client {id}") for id in range(6)]
"""Clients that each have their own domain."""
MEDIAN = CoordinateMedian()


def phase(strategy, name="train"):
    return Phase(name, ("p",), ("p",), strategy)


def bind_rule(strategy, rule=MEDIAN, clients=CLIENTS, **options):
    (found,) = bind_aggregators([phase(strategy)], rule, clients, **options)
    return found.strategy


def make(shared):
    return {"sum": shared["p"].sum(0)}


@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        (FedAvg("uniform"), lambda s: s),
        (Slots("domain"), lambda s: s),
        (IndicatorMean(), lambda s: s),
        (ServerComputed(FedAvg(), make), lambda s: s.inner),
        (FedAvg(), lambda s: s),
        (MovingAverage(FedAvg(), ema_share(0.5), ("p",)), lambda s: s.inner),
        (ByName({"p": MovingAverage(IndicatorMean(), ema_share(0.5), ("p",)), "q": FedAvg()}), lambda s: s.parts["q"]),
        (ByName({"p": ServerComputed(Slots("domain"), make)}), lambda s: s.parts["p"].inner),
    ],
)
def test_every_averaging_part_gets_the_aggregator(strategy, part):
    after = bind_rule(strategy)
    assert type(after) is type(strategy)
    assert part(after).aggregator == MEDIAN
    assert part(strategy).aggregator == WeightedMean(), "the original strategy is unchanged"
    assert part(bind_rule(strategy, None)).aggregator == WeightedMean()


@pytest.mark.parametrize("strategy", [Slots("client"), Local()])
def test_strategies_without_an_average_get_no_aggregator(strategy):
    first, second = bind_aggregators([phase(strategy), phase(FedAvg(), "other")], MEDIAN, CLIENTS)
    assert "CoordinateMedian" not in repr(first)
    assert second.strategy.aggregator == MEDIAN
    with pytest.raises(UserError, match="no phase of the method combines the uploads of several"):
        bind_rule(strategy)


@pytest.mark.parametrize("strategy", [Slots("domain"), IndicatorMean()])
def test_domains_with_one_client_get_no_aggregator(strategy):
    with pytest.raises(UserError, match="no phase of the method combines the uploads of several"):
        bind_rule(strategy, clients=ONE_PER_DOMAIN)
    both = bind_rule(ByName({"p": strategy, "q": FedAvg()}), clients=ONE_PER_DOMAIN)
    assert (both.parts["p"].aggregator, both.parts["q"].aggregator) == (WeightedMean(), MEDIAN)


def test_too_few_clients_are_rejected():
    with pytest.raises(UserError, match="at least 7 clients, but phase 'train' has 6 in a round"):
        bind_rule(FedAvg(), Krum(2))
    with pytest.raises(UserError, match="at least 5 clients, but phase 'train' has 4 in a round"):
        bind_rule(FedAvg(), Krum(1), cohort_size=4)
    with pytest.raises(UserError, match=r"at least 5 clients, but phase 'train', domain 0 has 3 in a round"):
        bind_rule(Slots("domain"), TrimmedMean(0.2))
    with pytest.raises(UserError, match="at least 5 clients"):
        bind_aggregators([phase(FedAvg(aggregator=Krum(1)))], None, CLIENTS[:4])
    bind_rule(FedAvg(), Krum(1), cohort_size=99)


def updates(values, clients=CLIENTS, name="p"):
    return [
        ClientUpdate(client, {name: torch.tensor(value)}, client.num_examples)
        for client, value in zip(clients, values, strict=False)
    ]


def test_phases_and_parts_have_separate_memories():
    rule = ServerMomentum(momentum=0.5)
    parts = ByName({"p": MovingAverage(FedAvg(), ema_share(0.5), ("p",)), "q": FedAvg()})
    phases = bind_aggregators([phase(parts), phase(FedAvg(), "again")], rule, CLIENTS)
    server = ServerState.start({"p": torch.zeros(1), "q": torch.zeros(1)})
    both = [ClientUpdate(CLIENTS[0], {"p": torch.tensor([4.0]), "q": torch.tensor([6.0])}, 1)]
    server = phases[0].aggregate(server, both)
    server = phases[1].aggregate(server, updates([[5.0]]))
    assert {name: value.item() for name, value in server.memory.items()} == {
        "train/p/moments/p/velocity": 4.0,
        "train/q/moments/q/velocity": 6.0,
        "again/moments/p/velocity": 1.0,
    }


def test_each_domain_slot_combines_its_clients_with_its_own_memory():
    strategy = bind_rule(Slots("domain"), ServerMomentum(momentum=0.5, inner=MEDIAN))
    server = ServerState.start({"p": torch.zeros(3, 1)})
    values = [[1.0], [900.0], [2.0], [10.0], [30.0], [-900.0]]
    server = strategy.aggregate(server, updates(values))
    assert server.shared["p"].flatten().tolist() == [2.0, 10.0, 0.0]
    assert {name: value.item() for name, value in server.memory.items()} == {
        "0/moments/p/velocity": 2.0,
        "1/moments/p/velocity": 10.0,
    }
    later = strategy.aggregate(server, updates(values))
    assert later.shared["p"].flatten().tolist() == [3.0, 15.0, 0.0]


@pytest.mark.parametrize(
    "strategy", [FedAvg(aggregator=MEDIAN), Slots("domain", aggregator=MEDIAN), IndicatorMean(aggregator=MEDIAN)]
)
def test_too_few_uploads_change_nothing(strategy):
    server = ServerState.start({"p": torch.tensor([[1.0], [2.0]])})
    value = [5.0] if isinstance(strategy, Slots) else [[5.0], [6.0]]
    after = strategy.aggregate(server, updates([value, value]))
    assert torch.equal(after.shared["p"], server.shared["p"])
    assert not torch.equal(strategy.aggregate(server, updates([value] * 3)).shared["p"], server.shared["p"])


def test_indicator_mean_aggregates_only_clients_that_changed_a_domain():
    server = ServerState.start({"p": torch.tensor([[1.0], [2.0]])})
    values = [[[5.0], [2.0]], [[900.0], [2.0]], [[7.0], [8.0]], [[1.0], [9.0]], [[1.0], [2.0]]]
    after = IndicatorMean(aggregator=MEDIAN).aggregate(server, updates(values))
    assert after.shared["p"].flatten().tolist() == [7.0, 2.0]
    memory = IndicatorMean(aggregator=FedAdam(inner=MEDIAN)).aggregate(server, updates(values)).memory
    assert set(memory) == {"0/moments/p/first", "0/moments/p/second"}


def test_too_few_uploads_are_explained_per_domain():
    rule = TrimmedMean(share=0.4)
    assert rule.min_clients == 3
    whole = FedAvg(aggregator=rule)
    parts = ByName({"p": MovingAverage(Slots("domain", aggregator=rule), ema_share(0.5), ("p",)), "q": FedAvg()})
    assert most_needed_uploads(whole, CLIENTS, 6) == 3
    assert most_needed_uploads(parts, CLIENTS, 6) == 1
    first = CLIENTS[:3]
    assert too_few_uploads(whole, CLIENTS, 6, first) == {}
    assert too_few_uploads(whole, CLIENTS, 6, first[:2]) == {"": "TrimmedMean needs uploads of 3 clients, got 2"}
    assert too_few_uploads(whole, CLIENTS, 6, []) == {}
    assert too_few_uploads(parts, CLIENTS, 6, first) == {}
    lacking = {"domain 1": "TrimmedMean needs uploads of 3 clients, got 2"}
    assert too_few_uploads(parts, CLIENTS, 6, [*first, *CLIENTS[4:]]) == lacking


PRIVATE = DPFedAvg(1.0, 0.5)


def phases(*strategies):
    return [Phase(f"phase {index}", ("p",), ("p",), strategy) for index, strategy in enumerate(strategies)]


def bind(*strategies, rule=PRIVATE, **options):
    return bind_aggregators(phases(*strategies), rule, CLIENTS, **options)


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        (FedAvg("uniform"), 1),
        (MovingAverage(FedAvg(), ema_share(0.5), ("p",)), 1),
        (ServerComputed(FedAvg(), make), 1),
        (ByName({"p": FedAvg(), "q": MovingAverage(FedAvg(), ema_share(0.5), ("q",)), "r": Local()}), 2),
    ],
)
def test_each_average_has_a_privacy_guarantee(strategy, count):
    found = privacy_guarantees(bind(FedAvg(), strategy, Local()))
    assert found == (PRIVATE.guarantee,) * (1 + count)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Slots("client"), "its strategy Slots uses single uploads"),
        (Slots("domain"), "its strategy Slots uses single uploads"),
        (IndicatorMean(), "its strategy IndicatorMean uses single uploads"),
        (ByName({"p": FedAvg(), "q": MovingAverage(IndicatorMean(), ema_share(0.5), ("q",))}), "IndicatorMean uses"),
        (ServerComputed(Slots("client"), make), "Slots uses"),
    ],
)
def test_private_phases_that_use_single_uploads_are_rejected(strategy, reason):
    with pytest.raises(UserError, match=f"Phase 'phase 1' can't be differentially private.*{reason}"):
        bind(FedAvg(), strategy)


def test_custom_strategies_are_rejected_unless_they_reduce_the_cohort():
    @dataclass(frozen=True)
    class Own(Wrapper):
        @property
        def reduces_cohort(self):
            return False

    class Declared(Own):
        @property
        def reduces_cohort(self):
            return True

    with pytest.raises(UserError, match="its strategy Own uses single uploads"):
        bind(Own(FedAvg()))
    assert len(privacy_guarantees(bind(Declared(FedAvg())))) == 1


def test_noise_in_one_phase_needs_noise_in_all():
    own = phases(FedAvg(aggregator=FedAdam(inner=PRIVATE)), FedAvg(aggregator=CoordinateMedian()))
    with pytest.raises(UserError, match=r"Phase 'phase 1' can't be .* private: its aggregator CoordinateMedian"):
        bind_aggregators(own, None, CLIENTS)
    (only,) = bind_aggregators(own[:1], None, CLIENTS)
    assert privacy_guarantees([only]) == (PRIVATE.guarantee,)


def test_each_bound_aggregator_has_its_own_seed_and_the_cohort_size():
    first, second = bind(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=5)
    rules = [*(part.aggregator for part in first.strategy.parts.values()), second.strategy.aggregator]
    assert {rule.expected_clients for rule in rules} == {4}
    seeds = [rule.seed for rule in rules]
    assert len(set(seeds)) == 3
    again, _ = bind(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=5)
    other, _ = bind(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=6)
    assert [part.aggregator.seed for part in again.strategy.parts.values()] == seeds[:2]
    assert not {part.aggregator.seed for part in other.strategy.parts.values()} & set(seeds)


def test_noise_at_clients_needs_one_average_of_the_whole_upload():
    local = DPFedAvg(1.0, 0.5, noise_at="client")
    assert [each.is_local for each in privacy_guarantees(bind(FedAvg(), Local(), rule=local))] == [True]
    with pytest.raises(UserError, match="clients add noise to a whole upload, but"):
        privacy_guarantees(bind(ByName({"p": FedAvg(), "q": FedAvg()}), rule=local))
