"""Clients with one or several domains, few classes and unequal sizes, against counts from the papers."""

import numpy as np
import pytest

from fedvlp.data import ByDomain, Dirichlet, Dispersed, FewClasses, LongTail, QuantitySkew, Shards
from fedvlp.utils.errors import UserError

PARTITIONS = {
    "one client per domain": ByDomain(),
    "7 clients, Dirichlet 0.5 within domains": Dispersed(7, alpha=0.5),
    "3 clients, Dirichlet 1 within domains, at least 2 images each": Dispersed(3, alpha=1.0, min_examples=2),
    "5 clients, Dirichlet 0.3 over classes": Dirichlet(5, alpha=0.3),
    "6 clients, 2 class shards each": Shards(6),
    "7 clients, 5 class shards each within domains": Shards(7, shards_per_client=5, within_domains=True),
    "5 clients, 3 classes each": FewClasses(5, 3),
    "9 clients, 2 classes each within domains": FewClasses(9, within_domains=True),
    "5 clients of exponential 1.5 sizes": QuantitySkew(5, "exponential", ratio=1.5),
    "7 clients of Dirichlet 0.5 sizes within domains, at least 2 images each": QuantitySkew(
        7, "dirichlet", min_examples=2, within_domains=True
    ),
}


def problem(per_class=(20, 20, 20), classes=6):
    """Make shuffled labels and domains, with equal numbers of images for each class and domain."""
    labels = np.concatenate([np.repeat(np.arange(classes), count) for count in per_class])
    domains = np.repeat(np.arange(len(per_class)), [classes * count for count in per_class])
    order = np.concatenate([np.random.default_rng(0).permutation(np.flatnonzero(domains == d)) for d in range(3)])
    return labels[order], domains


LABELS, DOMAINS = problem((10, 10, 10))


def clients_of(partition, seed=0, of=(LABELS, DOMAINS)):
    return partition(*of, np.random.default_rng(seed))


def sizes(partition, seed=0):
    return [len(rows) for rows in clients_of(partition, seed)]


def counts(labels, clients):
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in clients])


@pytest.mark.parametrize("description", PARTITIONS)
def test_disjoint_complete_ascending_and_reproducible(description):
    partition = PARTITIONS[description]
    labels, domains = problem((20, 11, 7))
    state = str(np.random.get_state())
    clients = clients_of(partition, 3, (labels, domains))
    assert str(np.random.get_state()) == state  # the global generator is not moved
    np.random.seed(1)
    again = clients_of(partition, 3, (labels, domains))
    other = clients_of(partition, 4, (labels, domains))
    assert partition.description == description
    assert sorted(np.concatenate(clients)) == list(range(len(labels)))
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in clients)
    assert [rows.tolist() for rows in clients] == [rows.tolist() for rows in again]
    assert len(clients) == len(other) == getattr(partition, "num_clients", 3)
    if "domain" in description:
        assert all(len(np.unique(domains[rows])) == 1 for rows in clients)
    has_one_client_a_domain = len(clients) == 3
    assert ([rows.tolist() for rows in clients] == [rows.tolist() for rows in other]) == has_one_client_a_domain


def test_few_images_favour_no_client():
    """One image of each class: rounding must not always give it to the clients in the middle."""
    found = clients_of(Dirichlet(5, alpha=100.0), of=(np.arange(400), np.zeros(400, np.int64)))
    deviation = np.sqrt(400 * 0.2 * 0.8)
    assert np.abs(np.asarray([len(rows) for rows in found]) - 80).max() < 4 * deviation


def test_shards_are_cut_from_the_images_sorted_by_class_and_mix_domains():
    """60 images of each of 6 classes make 12 shards of 30, one class each, so a client with 2 has at most 2."""
    labels, domains = problem()
    clients = clients_of(Shards(6, shards_per_client=2), of=(labels, domains))
    found = counts(labels, clients)
    assert found.sum(1).tolist() == [60] * 6
    assert set(np.unique(found).tolist()) <= {0, 30, 60}
    assert ((found > 0).sum(1) <= 2).all()
    assert all(len(np.unique(domains[rows])) == 3 for rows in clients)


@pytest.mark.parametrize("partition", [Dispersed(9, alpha=0.1, min_examples=4), Dirichlet(9, 0.1, 4)], ids=repr)
def test_draws_again_until_each_client_has_enough(partition):
    assert min(min(sizes(partition, seed)) for seed in range(10)) >= 4
    assert min(min(sizes(type(partition)(9, alpha=0.1), seed)) for seed in range(10)) < 4


@pytest.mark.parametrize(("clients", "classes"), [(4, 2), (7, 5)])
def test_each_client_has_so_many_classes_and_each_class_as_equally_many_clients_as_can_be(clients, classes):
    found = counts(LABELS, clients_of(FewClasses(clients, classes)))
    assert (found > 0).sum(1).tolist() == [classes] * clients
    owners = (found > 0).sum(0)
    assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for of_class in found.T:  # divided evenly among the clients that have it
        shares = of_class[of_class > 0]
        assert shares.max() - shares.min() <= 1


def test_a_long_tail_keeps_exponentially_fewer_images_of_later_classes():
    """Of the 30 images of each of 6 classes, class c keeps 30 * 10 ** (-c / 5), rounded down."""
    partition = LongTail(10.0, Dirichlet(4, alpha=0.5))
    assert partition.description == "4 clients, Dirichlet 0.5 over classes, long tail of factor 10"
    clients = clients_of(partition)
    kept = np.concatenate(clients)
    assert np.bincount(LABELS[kept]).tolist() == [30, 18, 11, 7, 4, 3]
    assert len(set(kept.tolist())) == len(kept)
    assert all((np.diff(rows) > 0).all() for rows in clients)
    assert [rows.tolist() for rows in clients_of(partition)] == [rows.tolist() for rows in clients]
    assert set(np.concatenate(clients_of(partition, 1)).tolist()) != set(kept.tolist())
    # The kept images do not depend on their division among clients.
    assert set(np.concatenate(clients_of(LongTail(10.0))).tolist()) == set(kept.tolist())


def test_small_classes_of_a_long_tail_keep_what_they_have():
    labels = np.repeat([0, 3, 4, 5], [2, 40, 1, 90])
    (rows,) = clients_of(LongTail(100.0), of=(labels, np.zeros(133, np.int64)))
    assert np.bincount(labels[rows]).tolist() == [2, 0, 0, 19, 1, 1]


def test_sizes_follow_the_law_to_the_nearest_image():
    assert sizes(QuantitySkew(5)) == [12, 24, 36, 48, 60]  # 180 in proportion to 1, 2, 3, 4, 5
    # 180 in proportion to 1, 3, 9, 27 is 4.5, 13.5, 40.5, 121.5
    assert sizes(QuantitySkew(4, "exponential", ratio=3.0)) == [5, 14, 40, 121]
    assert sizes(QuantitySkew(6, within_domains=True)) == [20, 40] * 3
    assert sizes(QuantitySkew(4, "exponential", ratio=1.0)) == [45] * 4


def test_no_client_gets_fewer_than_the_least():
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


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            Dispersed(9, min_examples=50),
            "150 training images in each domain for 9 clients, IID within domains, at least 50 images each; got 60",
        ),
        (Dispersed(9, alpha=0.5, min_examples=21), r"21 of 60 training images; .*smallest client got \d+\."),
        (Dispersed(2), "at least one client for each of the 3 source domains; got num_clients=2"),
        (Shards(100, shards_per_client=4), "at least 400 training images.*got 180. Lower num_clients"),
        (FewClasses(2, 2), "2 clients of 2 classes each, some of the 6 classes have no client. Raise num_clients"),
        (FewClasses(2, 7), "classes_per_client of at most 6, all classes; got 7"),
        (QuantitySkew(90, min_examples=3), "at least 270 training images for 90 clients of linear sizes.*got 180"),
    ],
    ids=repr,
)
def test_impossible_partition_names_what_to_change(partition, message):
    with pytest.raises(UserError, match=message):
        clients_of(partition)
