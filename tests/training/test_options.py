"""A round needs as many clients as its phases do; a cohort that is larger than all clients is all of them."""

from __future__ import annotations

import pytest
from fedvlp.training.fit_options import FitOptions

from fedvlp.core.state import Client
from fedvlp.training.failures import FailurePolicy
from fedvlp.training.local_training import LocalTraining
from fedvlp.utils.errors import UserError

CLIENTS = [Client(id, 0, 5) for id in (3, 0, 8, 1)]


def options(cohort_size, min_clients):
    return FitOptions(
        rounds=7,
        local=LocalTraining(),
        cohort_size=cohort_size,
        clients_per_step=1,
        evaluate_every=2,
        patience=None,
        seed=5,
        personal_on_disk=False,
        failures=FailurePolicy(min_clients=min_clients),
    )


@pytest.mark.parametrize(("cohort_size", "min_clients"), [(None, 4), (3, 3), (9, 4), (2, 1)])
def test_enough_clients(cohort_size, min_clients):
    options(cohort_size, min_clients).check(CLIENTS)


@pytest.mark.parametrize(("cohort_size", "min_clients", "found"), [(None, 5, 4), (3, 4, 3), (9, 5, 4)])
def test_too_few_clients_are_refused(cohort_size, min_clients, found):
    with pytest.raises(UserError, match=rf"{found} clients, but min_clients is {min_clients}"):
        options(cohort_size, min_clients).check(CLIENTS)
