from __future__ import annotations

import hashlib
from itertools import chain

import numpy as np
import pytest

from fedvlp.core.state import Client
from fedvlp.data import ByDomain, Dirichlet, Dispersed, Shards
from fedvlp.data.splits import SplitPart, image_hash, split_hash, split_table
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


@pytest.mark.parametrize(
    ("partitioner", "options", "expected"),
    [
        (ByDomain(), {}, "d3ffd1872891e1c6"),
        (ByDomain(), {"test_fraction": 0.3, "shots": 2}, "ce6bc1d4b816e03b"),
        (Dispersed(3), {}, "34df5db8b3edc185"),
        (Dispersed(5, alpha=0.7), {}, "b2dea34771d15da2"),
        (Dirichlet(3, alpha=0.7), {}, "5552195b155ebb54"),
        (Shards(3, 2), {}, "9fa7368105a7f90e"),
    ],
    ids=repr,
)
def test_a_seed_gives_the_same_split_in_every_version(partitioner, options, expected):
    """Else results of an earlier version could not be gone on with, nor compared."""
    domains = {"b": images([9, 4, 6], "b"), "a": images([5, 8, 3], "a"), "c": images([2, 7], "c")}
    parts = split(domains, ["b", "a"], ["c"], 0.3, seed=5, partitioner=partitioner, **options)
    assert split_hash(parts, domains, ["x", "z", "y"]) == expected


def test_image_hash_follows_names_classes_and_domains_of_all_images():
    domains = {"a": images([5, 3], "a"), "b": images([4, 6], "b")}
    classes = ["x", "y"]
    others = [
        ({"a": domains["a"]}, classes),
        ({"a": domains["b"], "b": domains["a"]}, classes),
        ({"a": images([4, 4], "a"), "b": domains["b"]}, classes),
        ({"a": images([5, 3], "z"), "b": domains["b"]}, classes),
        (domains, ["y", "x"]),
    ]
    assert len({image_hash(domains, classes), *(image_hash(*other) for other in others)}) == 6
    assert image_hash(domains, classes) == image_hash(dict(reversed(domains.items())), classes)
    assert image_hash(domains, classes) == hashlib.sha256(listed(domains, classes).encode()).hexdigest()[:16]


def listed(domains, classes):
    """A line for each image, sorted."""
    lines = []
    for domain, found in domains.items():
        lines += [f"{domain}\0{found.names[i]}\0{classes[found.labels[i]]}" for i in range(len(found))]
    return "\n".join(sorted(lines))


def test_split_table_names_the_client_only_where_there_is_one():
    domains = {"b": images([3, 2], "b"), "a": images([2, 4], "a")}
    parts = [
        SplitPart("train", {"b": np.asarray([4, 0])}, (Client(3, 0, 2, "b 1"),)),
        SplitPart("validation", {"b": np.asarray([1])}, (Client(3, 0, 2, "b 1"), Client(5, 0, 1, "b 2"))),
        SplitPart("held_out", {"a": np.asarray([5, 2])}),
    ]
    assert split_table(parts, domains) == [
        {"role": "train", "domain": "b", "client": 3, "images": ["b/4", "b/0"]},
        {"role": "validation", "domain": "b", "client": None, "images": ["b/1"]},
        {"role": "held_out", "domain": "a", "client": None, "images": ["a/5", "a/2"]},
    ]


def test_names_that_are_no_utf8_are_hashed_as_they_are():
    """Disks may have them; Python keeps their bytes as surrogates."""
    domains = {"\udcffink": images([2, 3], "\udcfe")}
    other = {"\udcffink": images([2, 3], "\udcfd")}
    parts = split(domains, list(domains), [])
    hashes = {image_hash(each, ["x", "y"]) for each in (domains, other)}
    assert len(hashes | {split_hash(parts, domains, ["x", "y"]), split_hash(parts, other, ["x", "y"])}) == 4
