from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedvlp.data import ArrayImages, ByDomain, Dirichlet, Dispersed, Shards, few_shot, stratified_split
from fedvlp.data.split_table import split_hash, split_table
from fedvlp.data.splits import OfficialSplit, SplitRule, generator_for
from fedvlp.data.splits import deal as deal_shares
from fedvlp.utils.errors import UserError


def images(counts, prefix="x"):
    labels = np.repeat(np.arange(len(counts)), counts)
    return ArrayImages(
        np.zeros((len(labels), 2, 2, 3), np.uint8), labels, [f"{prefix}/{i}" for i in range(len(labels))]
    )


def deal(domains, sources, held_out, fraction=0.2, seed=0, partitioner=ByDomain(), **options):  # noqa: B008
    return deal_shares(domains, sources, held_out, SplitRule(fraction, seed=seed, **options), partitioner)


def rows(share):
    """The rows of a share of one domain."""
    ((_, found),) = share.parts
    return found


def of(shares, role):
    return [share for share in shares if share.role == role]


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_every_class_is_on_both_sides(fraction):
    labels = np.repeat(np.arange(6), [1, 2, 3, 10, 55, 100])
    train, validation = stratified_split(labels, fraction, np.random.default_rng(0))
    assert sorted([*train, *validation]) == list(range(len(labels)))
    counts = np.bincount(labels[validation], minlength=6)
    assert counts[0] == 0  # the only image of a class trains
    for size, count in zip([2, 3, 10, 55, 100], counts[1:], strict=True):
        assert count == min(max(round(fraction * size), 1), size - 1)


def test_split_depends_on_the_generator_alone():
    labels = np.repeat(np.arange(3), 20)
    first, again, other = (stratified_split(labels, 0.2, generator_for(seed, "a"))[1].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first != stratified_split(labels, 0.2, generator_for(0, "b"))[1].tolist()


def test_split_of_nothing():
    train, validation = stratified_split([], 0.2, np.random.default_rng(0))
    assert len(train) == len(validation) == 0


def test_deal_gives_each_source_domain_to_a_client():
    domains = {"a": images([5, 5]), "b": images([4, 6]), "c": images([3, 3])}
    shares = deal(domains, ["a", "c"], ["b"])
    assert [share.name for share in shares] == ["train/a", "train/c", "validation/a", "validation/c", "held_out/b"]
    assert [[client.id for client in share.clients] for share in shares] == [[0], [1], [0], [1], []]
    assert [share.clients[0].num_examples for share in shares[:2]] == [len(share) for share in shares[:2]] == [8, 4]
    assert rows(shares[4]).tolist() == list(range(10))


def test_a_split_does_not_depend_on_other_domains():
    domains = {"a": images([9, 9]), "b": images([4, 6]), "c": images([3, 3])}
    options = {"seed": 4, "test_fraction": 0.3, "shots": 1}
    alone, among = (deal(domains, sources, [], 0.3, **options) for sources in (["c"], ["a", "b", "c"]))
    for share in alone:
        (same,) = [other for other in among if other.name == share.name]
        assert rows(share).tolist() == rows(same).tolist()


def test_an_empty_validation_split_is_left_out():
    shares = deal({"a": images([1, 1]), "b": images([2, 2])}, ["a", "b"], [])
    assert [share.name for share in shares] == ["train/a", "train/b", "validation/b"]


def test_a_client_without_training_image_is_refused():
    with pytest.raises(UserError, match="'b' has no training image"):
        deal({"a": images([2, 2]), "b": images([0])}, ["a", "b"], [])
    with pytest.raises(UserError, match="'client 2' has no training image"):
        deal({"a": images([2, 2])}, ["a"], [], partitioner=lambda *_: [np.arange(2), np.arange(0)])


def test_several_clients_a_domain_get_names_and_rows_of_their_own():
    domains = {"a": images([10, 10]), "b": images([15])}
    shares = deal(domains, ["a", "b"], [], partitioner=Dispersed(3))
    trains = of(shares, "train")
    assert [share.clients[0].name for share in trains] == ["a 1", "a 2", "b"]
    assert [share.clients[0].domain for share in trains] == [0, 0, 1]
    assert [share.clients[0].num_examples for share in trains] == [8, 8, 12]
    assert [[client.name for client in share.clients] for share in of(shares, "validation")] == [["a 1", "a 2"], ["b"]]
    found = [row for share in shares if share.parts[0][0] == "a" for row in rows(share)]
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("partitioner", [Dispersed(6), Dispersed(5, alpha=0.5), Dirichlet(4), Shards(4)], ids=repr)
def test_what_measures_does_not_depend_on_the_clients(partitioner):
    domains = {"a": images([15, 15], "a"), "b": images([20, 20], "b"), "c": images([3, 3], "c")}
    plain, other = (
        deal(domains, ["a", "b"], ["c"], test_fraction=0.2, shots=8, partitioner=each)
        for each in (ByDomain(), partitioner)
    )
    for one, two in zip(plain[2:], other[-5:], strict=True):
        assert (one.name, rows(one).tolist()) == (two.name, rows(two).tolist())
    for domain in ("a", "b"):
        trained = np.concatenate([dict(share.parts).get(domain, []) for share in of(other, "train")])
        assert sorted(trained.tolist()) == rows(plain["ab".index(domain)]).tolist()


@pytest.mark.parametrize("partitioner", [Dirichlet(3, alpha=100.0), Shards(3)], ids=repr)
def test_a_client_of_several_domains_does_not_claim_one(partitioner):
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}
    shares = deal(domains, ["a", "b"], [], seed=1, partitioner=partitioner)
    trains = of(shares, "train")
    assert [share.name for share in trains] == ["train/client 1", "train/client 2", "train/client 3"]
    assert all(share.clients[0].domain == -1 for share in trains)
    assert sum(len(share) for share in trains) == sum(share.clients[0].num_examples for share in trains) == 48
    for share in trains:
        assert [domain for domain, _ in share.parts] == ["a", "b"]
        assert all((np.diff(found) > 0).all() for _, found in share.parts)
    assert [len(share.clients) for share in of(shares, "validation")] == [3, 3]


def test_test_split_is_stratified_and_disjoint_from_the_rest():
    shares = deal({"a": images([10, 20, 2, 1])}, ["a"], [], 0.25, test_fraction=0.2)
    assert [share.name for share in shares] == ["train/a", "validation/a", "test/a"]
    labels = np.repeat(np.arange(4), [10, 20, 2, 1])
    assert np.bincount(labels[rows(shares[2])], minlength=4).tolist() == [2, 4, 1, 0]
    assert np.bincount(labels[rows(shares[1])], minlength=4).tolist() == [2, 4, 0, 0]  # a quarter of 8 and of 16
    assert sorted(np.concatenate([rows(share) for share in shares])) == list(range(33))


@pytest.mark.parametrize("partitioner", [ByDomain(), Dispersed(4), Dirichlet(2, alpha=50.0)], ids=repr)
@pytest.mark.parametrize("shots", [1, 2, 4, 8, 16])
def test_few_shot_is_exact_over_all_clients_of_a_domain(shots, partitioner):
    sizes = {"a": [30, 30, 30], "b": [25, 10, 3]}
    domains = {name: images(counts, name) for name, counts in sizes.items()}
    shares = deal(domains, ["a", "b"], [], shots=shots, partitioner=partitioner)
    whole = deal(domains, ["a", "b"], [])
    for name in sizes:
        found = np.concatenate([dict(share.parts).get(name, []) for share in of(shares, "train")]).astype(int)
        (all_rows,) = [rows(share) for share in of(whole, "train") if share.parts[0][0] == name]
        available = np.bincount(domains[name].labels[all_rows], minlength=3)
        assert np.bincount(domains[name].labels[found], minlength=3).tolist() == np.minimum(available, shots).tolist()
        assert set(found.tolist()) <= set(all_rows.tolist())
    for one, two in zip(of(shares, "validation"), of(whole, "validation"), strict=True):
        assert rows(one).tolist() == rows(two).tolist()


def test_few_shots_are_nested():
    labels = np.random.default_rng(1).integers(0, 5, 100)
    chosen = [set(few_shot(labels, shots, np.random.default_rng(7)).tolist()) for shots in (1, 2, 4, 8, 16)]
    assert [len(found) for found in chosen] == [5, 10, 20, 40, 80]
    assert all(fewer < more for fewer, more in pairwise(chosen))
    assert chosen[0] != set(few_shot(labels, 1, np.random.default_rng(8)).tolist())


def test_too_few_shots_for_the_clients_is_one_clear_error():
    with pytest.raises(UserError, match=r"each of 5 clients 1 of 2 training images.*more images \(shots"):
        deal({"a": images([9, 9])}, ["a"], [], shots=1, partitioner=Dispersed(5))


def test_split_table_has_a_row_for_each_domain_of_a_client():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}
    table = split_table(deal(domains, ["a", "b"], [], partitioner=Dirichlet(2, alpha=100.0)), domains)
    assert [(row["role"], row["domain"], row["client"]) for row in table] == [
        ("train", "a", 0), ("train", "b", 0), ("train", "a", 1), ("train", "b", 1),
        ("validation", "a", None), ("validation", "b", None),
    ]  # fmt: skip
    names = [name for row in table for name in row["images"]]
    assert len(names) == len(set(names)) == 60


def test_split_hash_tells_clients_apart_unless_they_are_domains():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}

    def value(partitioner, **options):
        return split_hash(deal(domains, ["a", "b"], [], partitioner=partitioner, **options), domains, ["x", "y"])

    plain = value(ByDomain())
    assert plain == value(Dispersed(2, alpha=0.1))  # one client a domain, whatever it is called
    others = [value(each) for each in (Dispersed(4), Dispersed(4, alpha=1.0), Dispersed(3), Dirichlet(2), Shards(2))]
    others += [value(ByDomain(), shots=2), value(ByDomain(), test_fraction=0.2)]
    assert len({plain, *others}) == 8


def test_split_hash_follows_role_domain_name_and_class():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}

    def value(sources=("a",), held_out=("b",), seed=0, names=("x", "y"), of=domains):
        return split_hash(deal(of, sources, held_out, seed=seed), of, names)

    assert value() == value()
    assert len(value()) == 16
    renamed = {"a": images([5, 5], "z"), "b": domains["b"]}
    relabelled = {"a": images([6, 4], "a"), "b": domains["b"]}
    others = [value(("b",), ("a",)), value(("a", "b"), ()), value(seed=1), value(names=("x", "z"))]
    others += [value(of=renamed), value(of=relabelled)]
    assert len({value(), *others}) == 7


def test_split_hash_does_not_follow_the_order_of_shares():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}
    shares = deal(domains, ["a", "b"], [])
    assert split_hash(shares, domains, ["x", "y"]) == split_hash(shares[::-1], domains, ["x", "y"])


def test_an_official_split_is_kept_and_what_it_lacks_is_drawn_from_its_training_images():
    labels = np.repeat(np.arange(2), 10)
    train = np.arange(0, 20, 2)
    parts = SplitRule(0.2, test_fraction=0.4).divide(labels, "a", {"train": train, "validation": np.array([1, 3])})
    assert parts["validation"].tolist() == [1, 3]
    assert len(parts["test"]) == 4
    assert sorted([*parts["train"], *parts["test"]]) == train.tolist()
    official = OfficialSplit("train/test", {"b": {"held_out": np.array([5])}, "a": {"train": train}})
    domains = {"a": images([10, 10], "a"), "b": images([3, 3], "b")}
    shares = deal_shares(domains, ["a"], ["b"], SplitRule(), ByDomain(), official)
    assert rows(shares[-1]).tolist() == [5]
    assert len(shares[0]) + len(shares[1]) == len(train)
