"""Epsilon, compared with the accountant called by hand, a written-out formula, and the exact privacy loss."""

import math
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.core.phases import Phase, bind_aggregators
from fedvlp.core.state import Client
from fedvlp.core.strategies import ByName, FedAvg, Local
from fedvlp.training.privacy_accounting import PrivacyAccount, privacy_account
from fedvlp.utils.errors import UserError


def account(*noise_multipliers, num_clients=100, cohort_size=100, delta=1e-5):
    return PrivacyAccount(noise_multipliers, num_clients, cohort_size, delta, repeats=True)


def phases(*strategies, rule=None, clients=20):
    made = [Phase(f"phase {index}", ("p",), ("p",), strategy) for index, strategy in enumerate(strategies)]
    return bind_aggregators(made, rule, [Client(id, id, 5) for id in range(clients)])


def by_hand(event, rounds, delta):
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    return accountant.compose(event, rounds).get_epsilon(delta)


def renyi_formula(noises, rounds, delta):
    """Mironov 2017, Corollary 3, at each order, for a change of 2 clip norms; Canonne et al. 2020, Prop. 12."""
    orders = np.linspace(1.001, 400, 200_000)
    divergence = rounds * sum(orders * 2**2 / (2 * noise**2) for noise in noises)
    return (divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()


def exact_delta(shift, epsilon):
    """Compute the delta of N(0, 1) and N(shift, 1) at an epsilon (Balle and Wang 2018, Theorem 8)."""
    above = norm.cdf(shift / 2 - epsilon / shift)
    return above - math.exp(epsilon + norm.logcdf(-shift / 2 - epsilon / shift))


def test_all_phases_of_a_round_use_one_cohort_sample():
    both = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise / 2) for noise in (3.0, 1.5)])
    expected = by_hand(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, both), 15, 1e-5)
    assert account(3.0, 1.5, cohort_size=10).epsilon(15) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("noises", "rounds"), [((1.0,), 1), ((4.0,), 30), ((2.0, 7.0), 5), ((0.5,), 3)])
def test_epsilon_matches_the_formula_and_the_exact_loss(noises, rounds):
    found = account(*noises).epsilon(rounds)
    formula = renyi_formula(noises, rounds, 1e-5)
    assert formula - 1e-3 <= found <= formula * 1.01
    shift = 2 * math.sqrt(rounds * sum(noise**-2 for noise in noises))
    assert 1e-7 < exact_delta(shift, found) <= 1e-5
    not_doubled = renyi_formula([2 * noise for noise in noises], rounds, 1e-5)
    assert exact_delta(shift, not_doubled) > 1e-5, "noise per clip norm, not per change, would promise too much"


def test_sampling_never_increases_epsilon():
    found = account(0.5, num_clients=9, cohort_size=3).epsilon(15)
    assert found == account(0.5, num_clients=9, cohort_size=9).epsilon(15), "the bound for samples is higher here"


@pytest.mark.filterwarnings("error")
def test_epsilon_grows_with_rounds_from_zero_and_is_infinite_without_noise():
    spent = [account(0.05).epsilon(rounds) for rounds in (0, 1, 1000)]
    assert spent[0] == 0
    assert spent == sorted(set(spent))
    assert math.isfinite(spent[-1])
    assert account(1.0, 0.0).epsilon(1) == math.inf


def test_the_account_covers_all_phases():
    rule = FedAdam(inner=DPFedAvg(0.5, 1.25, delta=1e-6, noise_from="system"))
    found = privacy_account(phases(ByName({"p": FedAvg(), "q": FedAvg()}), Local(), FedAvg(), rule=rule), 20, 8)
    assert found == PrivacyAccount((1.25,) * 3, 20, 8, 1e-6, repeats=False)
    assert privacy_account(phases(FedAvg(), rule=rule), 20, None).cohort_size == 20
    assert privacy_account(phases(FedAvg(), rule=rule), 20, 99).cohort_size == 20
    assert privacy_account(phases(FedAvg()), 20, None) is None


def test_a_delta_that_allows_publishing_a_client_is_rejected():
    private = phases(FedAvg(), rule=DPFedAvg(0.5, 1.25, delta=0.05))
    with pytest.raises(UserError, match=r"delta below 1 / 20, one over the number of clients; got 0\.05"):
        privacy_account(private, 20, None)
    assert privacy_account(private, 19, None).delta == 0.05


def test_a_missing_package_is_explained_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"needs dp-accounting.*fedvlp\[privacy\]"):
        privacy_account(phases(FedAvg(), rule=DPFedAvg(0.5, 1.25)), 20, None)
    assert privacy_account(phases(FedAvg()), 20, None) is None


def test_noise_from_the_system_needs_one_process():
    secret = phases(FedAvg(), rule=DPFedAvg(0.5, 1.25, noise_from="system"))
    privacy_account(secret, 20, None, processes=1)
    with pytest.raises(UserError, match="needs one process, but there are 2"):
        privacy_account(secret, 20, None, processes=2)
    privacy_account(phases(FedAvg(), rule=DPFedAvg(0.5, 1.25)), 20, None, processes=2)
    privacy_account(phases(FedAvg()), 20, None, processes=2)


def test_the_printed_line_states_what_is_covered():
    line = account(1.0, num_clients=9, cohort_size=9).describe(3)
    assert line.startswith(
        "privacy of tensors, not of metrics: epsilon 21.44, delta 1e-05 after 3 rounds, for all data"
    )
    assert "repeats with the seed" in line
    secret = PrivacyAccount((1.0,), 9, 9, 1e-5, repeats=False).describe(3)
    assert secret.endswith("9 clients")


def test_noise_at_clients_is_counted_without_cohort_sampling():
    local = phases(FedAvg(), rule=DPFedAvg(0.5, 1.25, noise_at="client", noise_from="system"))
    drawn = privacy_account(local, 200, 5)
    assert drawn == PrivacyAccount((1.25,), 200, 5, 1e-5, repeats=False, is_local=True)
    assert drawn.epsilon(4) == pytest.approx(by_hand(dp_accounting.GaussianDpEvent(1.25 / 2), 4, 1e-5), rel=1e-9)
    assert "also from the server" in drawn.describe(4)
    privacy_account(local, 200, 5, processes=2)
