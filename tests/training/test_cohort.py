"""Which clients take part, and which process trains which: ids, places and sizes have nothing in common."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fedvlp.core.state import Client
from fedvlp.training.cohort import sample_cohort
from fedvlp.training.engine import balance_clients

CLIENTS = [Client(id, 0, size, str(id)) for id, size in ((7, 5), (2, 31), (9, 8), (4, 13), (0, 13), (11, 2), (5, 8))]


def ids(clients):
    return [client.id for client in clients]


def test_all_take_part_by_ascending_id():
    for size in (None, 7, 8, 100):
        assert ids(sample_cohort(CLIENTS, size, seed=3)) == [0, 2, 4, 5, 7, 9, 11]


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_sample_has_so_many_different_clients_by_ascending_id(size):
    samples = [ids(sample_cohort(CLIENTS, size, seed)) for seed in range(700)]
    assert all(len(sample) == size and sample == sorted(set(sample)) for sample in samples)
    counts = Counter(itertools.chain(*samples))
    expected = 700 * size / 7
    assert len(counts) == 7
    assert all(abs(count - expected) < 0.25 * expected for count in counts.values())


def test_a_sample_depends_on_the_seed_and_not_on_the_order_of_the_clients():
    assert sample_cohort(CLIENTS, 3, 5) == sample_cohort(CLIENTS[::-1], 3, 5)
    assert len({tuple(ids(sample_cohort(CLIENTS, 3, seed))) for seed in range(9)}) > 5


def test_the_longest_come_first_and_go_to_whoever_has_least_to_do():
    """31 | 13 (id 0) | 13 (id 4); 8 (id 5), 8 (id 9) and 5 to the second and third; 2 to the lesser."""
    shares = balance_clients(CLIENTS, lambda client: client.num_examples, 3)
    assert [ids(share) for share in shares] == [[2], [0, 5, 7], [4, 9, 11]]
    assert [ids(share) for share in balance_clients(CLIENTS, lambda client: client.num_examples, 1)] == [ids(CLIENTS)]


def test_more_processes_than_clients():
    shares = balance_clients(CLIENTS[:2], lambda client: client.num_examples, 4)
    assert [ids(share) for share in shares] == [[2], [7], [], []]
