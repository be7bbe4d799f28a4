from __future__ import annotations

from itertools import chain

from fedvlp.data import ByDomain, Dirichlet, Dispersed, Shards
from fedvlp.data.split_table import split_hash, split_table
from tests.helpers.data import images, split


def test_split_table_has_a_row_for_each_domain_of_a_client():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}
    table = split_table(split(domains, ["a", "b"], [], partitioner=Dirichlet(2, alpha=100.0)), domains)
    assert [(row["role"], row["domain"], row["client"]) for row in table] == [
        ("train", "a", 0), ("train", "b", 0), ("train", "a", 1), ("train", "b", 1),
        ("validation", "a", None), ("validation", "b", None),
    ]  # fmt: skip
    names = list(chain.from_iterable(row["images"] for row in table))
    assert len(names) == len(set(names)) == 60


def test_split_hash_tells_clients_apart_unless_they_are_domains():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}

    def value(partitioner, **options):
        return split_hash(split(domains, ["a", "b"], [], partitioner=partitioner, **options), domains, ["x", "y"])

    plain = value(ByDomain())
    assert plain == value(Dispersed(2, alpha=0.1))  # one client a domain, whatever it is called
    others = [value(each) for each in (Dispersed(4), Dispersed(4, alpha=1.0), Dispersed(3), Dirichlet(2), Shards(2))]
    others += [value(ByDomain(), shots=2), value(ByDomain(), test_fraction=0.2)]
    assert len({plain, *others}) == 8


def test_split_hash_follows_role_domain_name_and_class():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}

    def value(sources=("a",), held_out=("b",), seed=0, names=("x", "y"), of=domains):
        return split_hash(split(of, sources, held_out, seed=seed), of, names)

    assert value() == value()
    assert len(value()) == 16
    renamed = {"a": images([5, 5], "z"), "b": domains["b"]}
    relabelled = {"a": images([6, 4], "a"), "b": domains["b"]}
    others = [value(("b",), ("a",)), value(("a", "b"), ()), value(seed=1), value(names=("x", "z"))]
    others += [value(of=renamed), value(of=relabelled)]
    assert len({value(), *others}) == 7


def test_split_hash_does_not_follow_the_order_of_parts():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}
    parts = split(domains, ["a", "b"], [])
    assert split_hash(parts, domains, ["x", "y"]) == split_hash(parts[::-1], domains, ["x", "y"])
