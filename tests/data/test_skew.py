"""Clients of few classes and of unequal sizes, against what a reader of the papers would count."""

from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data import FewClasses, QuantitySkew, Shards
from fedvlp.data.partition import apportion
from fedvlp.utils.errors import UserError

LABELS = np.tile(np.repeat(np.arange(6), 10), 3)  # in each of 3 domains 10 images of each of 6 classes
DOMAINS = np.repeat([0, 1, 2], 60)


def deal(partition, seed=0):
    return partition(LABELS, DOMAINS, np.random.default_rng(seed))


def sizes(partition, seed=0):
    return [len(rows) for rows in deal(partition, seed)]


@pytest.mark.parametrize(("clients", "classes"), [(4, 2), (3, 2), (7, 5), (1, 6)])
def test_each_client_has_so_many_classes_and_each_class_as_equally_many_clients_as_can_be(clients, classes):
    owned = [set(LABELS[rows].tolist()) for rows in deal(FewClasses(clients, classes))]
    assert [len(own) for own in owned] == [classes] * clients
    owners = [sum(label in own for own in owned) for label in range(6)]
    assert max(owners) - min(owners) <= 1


def test_as_many_places_as_classes_make_clients_that_share_none():
    owned = [set(LABELS[rows].tolist()) for rows in deal(FewClasses(3, 2))]
    assert set.union(*owned) == set(range(6))
    assert sum(map(len, owned)) == 6


def test_a_class_is_dealt_evenly_to_the_clients_that_have_it():
    clients = deal(FewClasses(7, 5))
    for label in range(6):
        found = [int((LABELS[rows] == label).sum()) for rows in clients]
        shares = [count for count in found if count]
        assert sum(shares) == 30
        assert max(shares) - min(shares) <= 1


def test_classes_of_clients_depend_on_the_seed():
    assert (
        len({repr([np.unique(LABELS[rows]).tolist() for rows in deal(FewClasses(3, 2), seed)]) for seed in range(9)})
        > 4
    )


@pytest.mark.parametrize("make", [Shards, FewClasses, QuantitySkew])
def test_within_domains_a_client_has_images_of_one(make):
    clients = deal(make(9, within_domains=True))
    assert [np.unique(DOMAINS[rows]).tolist() for rows in clients] == [[0]] * 3 + [[1]] * 3 + [[2]] * 3
    assert sorted(np.concatenate(clients)) == list(range(180))


def test_sizes_follow_the_law_to_the_nearest_image():
    assert sizes(QuantitySkew(5)) == [12, 24, 36, 48, 60]  # 180 in proportion to 1, 2, 3, 4, 5
    # 180 in proportion to 1, 3, 9, 27 is 4.5, 13.5, 40.5, 121.5
    assert sizes(QuantitySkew(4, "exponential", ratio=3.0)) == [5, 14, 40, 121]
    assert sizes(QuantitySkew(6, within_domains=True)) == [20, 40] * 3
    assert sizes(QuantitySkew(4, "exponential", ratio=1.0)) == [45] * 4


def test_nobody_gets_fewer_than_the_least():
    assert sizes(QuantitySkew(60, "exponential"))[:40] == [1] * 40
    assert sizes(QuantitySkew(30, "exponential", min_examples=4))[:25] == [4] * 25
    drawn = [sizes(QuantitySkew(30, "dirichlet", alpha=0.05, min_examples=2), seed) for seed in range(5)]
    assert {min(of_seed) for of_seed in drawn} == {2}
    assert {sum(of_seed) for of_seed in drawn} == {180}


def test_drawn_sizes_have_the_mean_and_deviation_of_their_distribution():
    """A share of Dirichlet(alpha) over K clients has mean 1 / K and variance (K - 1) / (K^2 (K alpha + 1))."""
    drawn = np.asarray([sizes(QuantitySkew(4, "dirichlet", alpha=2.0), seed) for seed in range(300)]) / 180
    assert np.abs(drawn.mean(0) - 0.25).max() < 5 * drawn.std() / np.sqrt(300)
    assert drawn.std() == pytest.approx(np.sqrt(3 / (16 * 9)), rel=0.1)


def test_what_a_client_has_is_a_random_part_of_all():
    """The largest of 2 clients has 120 of 180 images: 20 of each class, hypergeometric with deviation 2.37."""
    found = [np.bincount(LABELS[deal(QuantitySkew(2), seed)[1]], minlength=6) for seed in range(100)]
    assert np.abs(np.mean(found, 0) - 20).max() < 5 * 2.37 / np.sqrt(100)
    assert 1.8 < np.std(found) < 3.0


def test_shares_become_whole_numbers_by_the_largest_remainders():
    generator = np.random.default_rng(0)
    for _ in range(50):
        shares = generator.random(5) * (generator.random(5) < 0.8)
        total = int(generator.integers(0, 40))
        if not shares.any():
            continue
        exact = total * shares / shares.sum()
        found = apportion(total, shares)
        assert found.sum() == total
        assert (np.abs(found - exact) < 1).all()
        raised = exact[found > exact] % 1
        cut = exact[found < exact] % 1
        assert not len(raised) or not len(cut) or raised.min() >= cut.max()


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (FewClasses(2, 2), "2 clients of 2 classes each leave some of the 6 classes to nobody. Raise num_clients"),
        (FewClasses(2, 7), "classes_per_client of at most 6, as there are classes; got 7"),
        (FewClasses(2, 6, within_domains=True), "at least one client for each of the 3 source domains"),
        (QuantitySkew(90, min_examples=3), "at least 270 training images for 90 clients of linear sizes.*got 180"),
    ],
    ids=repr,
)
def test_impossible_partition_says_what_to_change(partition, message):
    with pytest.raises(UserError, match=message):
        deal(partition)


def test_descriptions_say_all_that_a_partition_depends_on():
    partitions = [
        FewClasses(30, 3),
        FewClasses(30, within_domains=True),
        Shards(6, within_domains=True),
        QuantitySkew(5),
        QuantitySkew(5, "exponential", ratio=1.5),
        QuantitySkew(5, "dirichlet", alpha=0.1, min_examples=2, within_domains=True),
    ]
    assert [partition.description for partition in partitions] == [
        "30 clients, 3 classes each",
        "30 clients, 2 classes each within domains",
        "6 clients, 2 class shards each within domains",
        "5 clients of linear sizes",
        "5 clients of exponential 1.5 sizes",
        "5 clients of Dirichlet 0.1 sizes within domains, at least 2 images each",
    ]
