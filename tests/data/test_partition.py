from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data import ByDomain, Dirichlet, Dispersed, FewClasses, QuantitySkew, Shards
from fedvlp.utils.errors import UserError

PARTITIONS = [
    ByDomain(),
    Dispersed(7),
    Dispersed(7, alpha=0.5),
    Dispersed(3, alpha=1.0),
    Dirichlet(5, alpha=0.3),
    Shards(6),
    Shards(4, shards_per_client=5),
    Shards(7, within_domains=True),
    FewClasses(5, 3),
    FewClasses(9, within_domains=True),
    QuantitySkew(5),
    QuantitySkew(7, "dirichlet", within_domains=True),
]


def problem(per_class=(20, 20, 20), classes=6):
    """Labels and domains, with so many images of each class in each domain, not in the order of classes."""
    labels = np.concatenate([np.repeat(np.arange(classes), count) for count in per_class])
    domains = np.repeat(np.arange(len(per_class)), [classes * count for count in per_class])
    order = np.concatenate([np.random.default_rng(0).permutation(np.flatnonzero(domains == d)) for d in range(3)])
    return labels[order], domains


def counts(labels, clients):
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in clients])


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_disjoint_complete_ascending_and_reproducible(partition):
    labels, domains = problem((20, 11, 7))
    clients, again = (partition(labels, domains, np.random.default_rng(3)) for _ in range(2))
    other = partition(labels, domains, np.random.default_rng(4))
    assert sorted(np.concatenate(clients)) == list(range(len(labels)))
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in clients)
    assert [rows.tolist() for rows in clients] == [rows.tolist() for rows in again]
    assert len(clients) == len(other) == getattr(partition, "num_clients", 3)
    is_random = not isinstance(partition, ByDomain) and partition != Dispersed(3, alpha=1.0)  # one client a domain
    assert ([rows.tolist() for rows in clients] != [rows.tolist() for rows in other]) == is_random


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_global_generator_is_neither_read_nor_moved(partition):
    labels, domains = problem()
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = partition(labels, domains, np.random.default_rng(0))
    assert (np.random.get_state()[1] == before).all()
    np.random.seed(1)
    assert [rows.tolist() for rows in first] == [
        rows.tolist() for rows in partition(labels, domains, np.random.default_rng(0))
    ]


def test_dispersed_clients_have_one_domain_and_are_spread_as_evenly_as_possible():
    labels, domains = problem()
    clients = Dispersed(20)(labels, domains, np.random.default_rng(0))
    owners = [set(domains[rows].tolist()) for rows in clients]
    assert owners == [{0}] * 7 + [{1}] * 7 + [{2}] * 6
    assert [len(rows) for rows in clients] == [18, 17, 17, 17, 17, 17, 17] * 2 + [20] * 6


def test_dispersed_iid_is_a_plain_random_deal():
    """Of 120 images 20 of each class; a client of 60 has a hypergeometric number of each, deviation 2.04."""
    labels, domains = problem()
    halves = [counts(labels, Dispersed(6)(labels, domains, np.random.default_rng(seed))) for seed in range(200)]
    first = np.stack([found[0] for found in halves])  # [seeds, classes]
    assert first.sum(1).tolist() == [60] * 200
    assert np.abs(first.mean(0) - 10).max() < 5 * 2.04 / np.sqrt(200)
    assert 1.5 < first.std() < 2.6


@pytest.mark.parametrize("partition", [Dispersed(12, alpha=1e7), Dirichlet(12, alpha=1e7)], ids=repr)
def test_large_alpha_deals_each_class_evenly(partition):
    labels, domains = problem((40, 40, 40))
    found = counts(labels, partition(labels, domains, np.random.default_rng(0)))
    assert np.abs(found - 10).max() <= 1


@pytest.mark.parametrize("partition", [Dispersed(12, alpha=1e-3), Dirichlet(4, alpha=1e-3)], ids=repr)
def test_small_alpha_gives_a_class_to_one_client(partition):
    labels, domains = problem((40, 40, 40))
    owned = []
    for seed in range(20):
        try:
            clients = partition(labels, domains, np.random.default_rng(seed))
        except UserError:  # six classes may well not reach everyone
            continue
        for domain in set(domains.tolist()) if isinstance(partition, Dispersed) else [None]:
            inside = [rows if domain is None else rows[domains[rows] == domain] for rows in clients]
            found = counts(labels, inside)
            owned += (found.max(0) / found.sum(0)).tolist()
    assert len(owned) > 30
    assert np.mean(owned) > 0.97


def test_skew_falls_as_alpha_rises():
    labels, domains = problem((40, 40, 40))
    skew = []
    for alpha in (0.05, 0.5, 5.0, 500.0):
        found = [counts(labels, Dirichlet(4, alpha)(labels, domains, np.random.default_rng(seed))) for seed in range(5)]
        skew.append(np.mean([(table.max(0) / table.sum(0)).mean() for table in found]))
    assert skew == sorted(skew, reverse=True)
    assert skew[0] > 0.75
    assert skew[-1] < 0.3


def test_few_images_favour_no_client():
    """One image of each class: rounding must not always give it to the clients in the middle."""
    found = Dirichlet(5, alpha=100.0)(np.arange(400), np.zeros(400, np.int64), np.random.default_rng(0))
    deviation = np.sqrt(400 * 0.2 * 0.8)
    assert np.abs(np.asarray([len(rows) for rows in found]) - 80).max() < 4 * deviation


def test_shards_are_cut_from_the_images_sorted_by_class():
    """60 images of each of 6 classes, 12 shards of 30: each is of one class, so a client with 2 has at most 2."""
    labels, domains = problem()
    found = counts(labels, Shards(6, shards_per_client=2)(labels, domains, np.random.default_rng(0)))
    assert found.sum(1).tolist() == [60] * 6
    assert set(np.unique(found).tolist()) <= {0, 30, 60}
    assert ((found > 0).sum(1) <= 2).all()


def test_shards_mix_domains():
    labels, domains = problem()
    clients = Shards(6)(labels, domains, np.random.default_rng(0))
    assert all(len(np.unique(domains[rows])) == 3 for rows in clients)


@pytest.mark.parametrize("partition", [Dispersed(9, alpha=0.1, min_examples=4), Dirichlet(9, 0.1, 4)], ids=repr)
def test_draws_again_until_each_client_has_enough(partition):
    labels, domains = problem()

    def fewest(deals):
        sizes = []
        for seed in range(10):
            sizes += [len(rows) for rows in deals(labels, domains, np.random.default_rng(seed))]
        return min(sizes)

    assert fewest(partition) >= 4
    assert fewest(type(partition)(9, alpha=0.1)) < 4


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            Dispersed(9, min_examples=50),
            "9 clients, IID within domains, at least 50 images each: .* 50 of 120",
        ),
        (
            Dispersed(9, alpha=0.5, min_examples=41),
            r"41 of 120 training images in 100 draw.*poorest client \d+\.",
        ),
        (Dirichlet(9, alpha=0.5, min_examples=41), "raise alpha"),
        (Dispersed(2), "at least one client for each of the 3 source domains; got num_clients=2"),
        (Dispersed(500), "could not give each of 167 clients 1 of 120"),
        (Shards(100, shards_per_client=4), "at least 400 training images.*got 360. Lower num_clients"),
    ],
    ids=repr,
)
def test_impossible_partition_says_what_to_change(partition, message):
    labels, domains = problem()
    with pytest.raises(UserError, match=message):
        partition(labels, domains, np.random.default_rng(0))


def test_descriptions():
    assert [partition.description for partition in (*PARTITIONS[:3], PARTITIONS[4], PARTITIONS[5])] == [
        "one client a domain",
        "7 clients, IID within domains",
        "7 clients, Dirichlet 0.5 within domains",
        "5 clients, Dirichlet 0.3 over classes",
        "6 clients, 2 class shards each",
    ]
