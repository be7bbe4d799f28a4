"""Which phases are private: those in which nothing of the uploads gets past the noise."""

from dataclasses import dataclass

import pytest

from fedvlp.core.aggregation import CoordinateMedian, DPFedAvg, FedAdam
from fedvlp.core.phases import Phase, guarantees, with_aggregation
from fedvlp.core.slots import IndicatorMean, Slots
from fedvlp.core.state import Client
from fedvlp.core.strategies import ByName, FedAvg, Local, MovingAverage, ServerComputed, Wrapper, ema_share
from fedvlp.utils.errors import UserError

CLIENTS = [Client(id, id // 3, 2 + id, f"client {id}") for id in range(6)]
PRIVATE = DPFedAvg(1.0, 0.5)


def make(shared):
    return {"sum": shared["p"].sum(0)}


def phases(*strategies):
    return [Phase(f"phase {index}", ("p",), ("p",), strategy) for index, strategy in enumerate(strategies)]


def placed(*strategies, rule=PRIVATE, **options):
    return with_aggregation(phases(*strategies), rule, CLIENTS, **options)


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        (FedAvg("uniform"), 1),
        (MovingAverage(FedAvg(), ema_share(0.5), ("p",)), 1),
        (ServerComputed(FedAvg(), make), 1),
        (ByName({"p": FedAvg(), "q": MovingAverage(FedAvg(), ema_share(0.5), ("q",)), "r": Local()}), 2),
    ],
)
def test_each_average_is_counted(strategy, count):
    found = guarantees(placed(FedAvg(), strategy, Local()))
    assert found == (PRIVATE.guarantee,) * (1 + count)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Slots("client"), "its strategy Slots looks at uploads one by one"),
        (Slots("domain"), "its strategy Slots looks at uploads one by one"),
        (IndicatorMean(), "its strategy IndicatorMean looks at uploads one by one"),
        (ByName({"p": FedAvg(), "q": MovingAverage(IndicatorMean(), ema_share(0.5), ("q",))}), "IndicatorMean looks"),
        (ServerComputed(Slots("client"), make), "Slots looks"),
    ],
)
def test_phase_that_looks_at_single_uploads_is_named(strategy, reason):
    with pytest.raises(UserError, match=f"Phase 'phase 1' can't be differentially private.*{reason}"):
        placed(FedAvg(), strategy)


def test_strategy_of_ones_own_is_refused_unless_it_says_that_it_reduces_all():
    @dataclass(frozen=True)
    class Own(Wrapper):
        @property
        def reduces_cohort(self):
            return False

    class Declared(Own):
        @property
        def reduces_cohort(self):
            return True

    with pytest.raises(UserError, match="its strategy Own looks at uploads one by one"):
        placed(Own(FedAvg()))
    assert len(guarantees(placed(Declared(FedAvg())))) == 1


def test_noise_in_one_phase_needs_noise_in_all():
    own = phases(FedAvg(aggregator=FedAdam(inner=PRIVATE)), FedAvg(aggregator=CoordinateMedian()))
    with pytest.raises(UserError, match=r"Phase 'phase 1' can't be .* private: its aggregator CoordinateMedian"):
        with_aggregation(own, None, CLIENTS)
    (only,) = with_aggregation(own[:1], None, CLIENTS)
    assert guarantees([only]) == (PRIVATE.guarantee,)


def test_without_noise_nothing_is_asked_for():
    assert guarantees(placed(FedAvg(), Slots("client"), IndicatorMean(), rule=None)) == ()
    assert guarantees([]) == ()


def test_each_place_has_a_seed_of_its_own_and_the_size_of_the_cohort():
    first, second = placed(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=5)
    rules = [*(part.aggregator for part in first.strategy.parts.values()), second.strategy.aggregator]
    assert {rule.expected_clients for rule in rules} == {4}
    seeds = [rule.seed for rule in rules]
    assert len(set(seeds)) == 3
    again, _ = placed(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=5)
    other, _ = placed(ByName({"p": FedAvg(), "q": FedAvg()}), FedAvg(), cohort_size=4, seed=6)
    assert [part.aggregator.seed for part in again.strategy.parts.values()] == seeds[:2]
    assert not {part.aggregator.seed for part in other.strategy.parts.values()} & set(seeds)


def test_noise_at_the_clients_needs_one_average_of_a_whole_upload():
    local = DPFedAvg(1.0, 0.5, noise_at="client")
    assert [each.is_local for each in guarantees(placed(FedAvg(), Local(), rule=local))] == [True]
    with pytest.raises(UserError, match="clients add noise to a whole upload"):
        guarantees(placed(ByName({"p": FedAvg(), "q": FedAvg()}), rule=local))
