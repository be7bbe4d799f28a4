from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data import ByDomain, Dirichlet, Dispersed, Shards
from fedvlp.data.split_rule import OfficialSplit, SplitRule
from fedvlp.data.splits import make_splits
from fedvlp.utils.errors import UserError
from tests.helpers.data import images, split


def rows(part):
    """The rows of a part of one domain."""
    (found,) = part.rows_by_domain.values()
    return found


def of(parts, role):
    return [part for part in parts if part.role == role]


def test_each_source_domain_goes_to_a_client():
    domains = {"a": images([5, 5]), "b": images([4, 6]), "c": images([3, 3])}
    parts = split(domains, ["a", "c"], ["b"])
    assert [part.name for part in parts] == ["train/a", "train/c", "validation/a", "validation/c", "held_out/b"]
    first, second = (part.clients for part in parts[:2])
    assert [client.id for client in first + second] == [0, 1]
    assert [part.clients for part in parts[2:]] == [first, second, ()]
    assert [part.clients[0].num_examples for part in parts[:2]] == [len(part) for part in parts[:2]] == [8, 4]
    assert rows(parts[4]).tolist() == list(range(10))


def test_a_split_does_not_depend_on_other_domains():
    domains = {"a": images([9, 9]), "b": images([4, 6]), "c": images([3, 3])}
    options = {"seed": 4, "test_fraction": 0.3, "shots": 1}
    alone, among = (split(domains, sources, [], 0.3, **options) for sources in (["c"], ["a", "b", "c"]))
    for part in alone:
        (same,) = [other for other in among if other.name == part.name]
        assert rows(part).tolist() == rows(same).tolist()


def test_an_empty_validation_split_is_left_out():
    parts = split({"a": images([1, 1]), "b": images([2, 2])}, ["a", "b"], [])
    assert [part.name for part in parts] == ["train/a", "train/b", "validation/b"]


def test_a_client_without_training_image_is_refused():
    with pytest.raises(UserError, match="'b' has no training image"):
        split({"a": images([2, 2]), "b": images([0])}, ["a", "b"], [])
    with pytest.raises(UserError, match="'client 2' has no training image"):
        split({"a": images([2, 2])}, ["a"], [], partitioner=lambda *_: [np.arange(2), np.arange(0)])


def test_several_clients_a_domain_get_names_and_rows_of_their_own():
    domains = {"a": images([10, 10]), "b": images([15])}
    parts = split(domains, ["a", "b"], [], partitioner=Dispersed(3))
    trains = of(parts, "train")
    assert [part.clients[0].name for part in trains] == ["a 1", "a 2", "b"]
    assert [part.clients[0].domain for part in trains] == [0, 0, 1]
    assert [part.clients[0].num_examples for part in trains] == [8, 8, 12]
    of_a, of_b = (part.clients for part in of(parts, "validation"))
    assert [client.name for client in of_a] == ["a 1", "a 2"]
    assert [client.name for client in of_b] == ["b"]
    found = np.concatenate([rows(part) for part in parts if part.domains == ["a"]])
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("partitioner", [Dispersed(6), Dispersed(5, alpha=0.5), Dirichlet(4), Shards(4)], ids=repr)
def test_what_measures_does_not_depend_on_the_clients(partitioner):
    domains = {"a": images([15, 15], "a"), "b": images([20, 20], "b"), "c": images([3, 3], "c")}
    plain, other = (
        split(domains, ["a", "b"], ["c"], test_fraction=0.2, shots=8, partitioner=each)
        for each in (ByDomain(), partitioner)
    )
    for one, two in zip(plain[2:], other[-5:], strict=True):
        assert (one.name, rows(one).tolist()) == (two.name, rows(two).tolist())
    for domain in ("a", "b"):
        trained = np.concatenate([part.rows_by_domain.get(domain, []) for part in of(other, "train")])
        assert sorted(trained.tolist()) == rows(plain["ab".index(domain)]).tolist()


@pytest.mark.parametrize("partitioner", [Dirichlet(3, alpha=100.0), Shards(3)], ids=repr)
def test_a_client_of_several_domains_does_not_claim_one(partitioner):
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}
    parts = split(domains, ["a", "b"], [], seed=1, partitioner=partitioner)
    trains = of(parts, "train")
    assert [part.name for part in trains] == ["train/client 1", "train/client 2", "train/client 3"]
    assert all(part.clients[0].domain == -1 for part in trains)
    assert sum(len(part) for part in trains) == sum(part.clients[0].num_examples for part in trains) == 48
    for part in trains:
        assert part.domains == ["a", "b"]
        assert all((np.diff(found) > 0).all() for found in part.rows_by_domain.values())
    assert [len(part.clients) for part in of(parts, "validation")] == [3, 3]


def test_test_split_is_stratified_and_disjoint_from_the_rest():
    parts = split({"a": images([10, 20, 2, 1])}, ["a"], [], 0.25, test_fraction=0.2)
    assert [part.name for part in parts] == ["train/a", "validation/a", "test/a"]
    labels = np.repeat(np.arange(4), [10, 20, 2, 1])
    assert np.bincount(labels[rows(parts[2])], minlength=4).tolist() == [2, 4, 1, 0]
    assert np.bincount(labels[rows(parts[1])], minlength=4).tolist() == [2, 4, 0, 0]  # a quarter of 8 and of 16
    assert sorted(np.concatenate([rows(part) for part in parts])) == list(range(33))


@pytest.mark.parametrize("partitioner", [ByDomain(), Dispersed(4), Dirichlet(2, alpha=50.0)], ids=repr)
@pytest.mark.parametrize("shots", [1, 2, 4, 8, 16])
def test_few_shot_is_exact_over_all_clients_of_a_domain(shots, partitioner):
    sizes = {"a": [30, 30, 30], "b": [25, 10, 3]}
    domains = {name: images(counts, name) for name, counts in sizes.items()}
    parts = split(domains, ["a", "b"], [], shots=shots, partitioner=partitioner)
    whole = split(domains, ["a", "b"], [])
    for name in sizes:
        found = np.concatenate([part.rows_by_domain.get(name, []) for part in of(parts, "train")]).astype(int)
        (all_rows,) = [rows(part) for part in of(whole, "train") if part.domains == [name]]
        available = np.bincount(domains[name].labels[all_rows], minlength=3)
        assert np.bincount(domains[name].labels[found], minlength=3).tolist() == np.minimum(available, shots).tolist()
        assert set(found.tolist()) <= set(all_rows.tolist())
    for one, two in zip(of(parts, "validation"), of(whole, "validation"), strict=True):
        assert rows(one).tolist() == rows(two).tolist()


def test_too_few_shots_for_the_clients_is_one_clear_error():
    with pytest.raises(UserError, match=r"each of 5 clients 1 of 2 training images.*more images \(shots"):
        split({"a": images([9, 9])}, ["a"], [], shots=1, partitioner=Dispersed(5))


def test_an_official_split_is_kept_and_what_it_lacks_is_drawn_from_its_training_images():
    labels = np.repeat(np.arange(2), 10)
    train = np.arange(0, 20, 2)
    parts = SplitRule(0.2, test_fraction=0.4).divide(labels, "a", {"train": train, "validation": np.array([1, 3])})
    assert parts["validation"].tolist() == [1, 3]
    assert len(parts["test"]) == 4
    assert sorted([*parts["train"], *parts["test"]]) == train.tolist()
    official = OfficialSplit("train/test", {"b": {"held_out": np.array([5])}, "a": {"train": train}})
    domains = {"a": images([10, 10], "a"), "b": images([3, 3], "b")}
    parts = make_splits(domains, ["a"], ["b"], SplitRule(), ByDomain(), official)
    assert rows(parts[-1]).tolist() == [5]
    assert len(parts[0]) + len(parts[1]) == len(train)
