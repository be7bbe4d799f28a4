"""A round needs as many clients as its phases do; a cohort that is larger than all clients is all of them."""

from __future__ import annotations

import pytest

from fedvlp.core.state import Client
from fedvlp.training.options import check_clients
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation

CLIENTS = [Client(id, 0, 5) for id in (3, 0, 8, 1)]


def federation_of(tmp_path, cohort_size, min_clients):
    made = federation(tmp_path, cohort_size=cohort_size, min_clients=min_clients)
    made.module = Linear()
    made.data = Points()
    return made


@pytest.mark.parametrize(("cohort_size", "min_clients"), [(None, 4), (3, 3), (9, 4), (2, 1)])
def test_enough_clients(tmp_path, cohort_size, min_clients):
    check_clients(federation_of(tmp_path, cohort_size, min_clients), CLIENTS)


@pytest.mark.parametrize(("cohort_size", "min_clients", "found"), [(None, 5, 4), (3, 4, 3), (9, 5, 4)])
def test_too_few_clients_are_refused(tmp_path, cohort_size, min_clients, found):
    with pytest.raises(UserError, match=rf"{found} clients, but min_clients is {min_clients}"):
        check_clients(federation_of(tmp_path, cohort_size, min_clients), CLIENTS)
