"""Roles and clients of images: random draws, their dependencies, and the table and hash of a split."""

import hashlib
from itertools import chain, pairwise

import numpy as np
import pytest

from fedvlp.core.state import Client
from fedvlp.data import ByDomain, Dirichlet, Dispersed, Shards, few_shot, stratified_split
from fedvlp.data.splits import SplitPart, SplitRule, image_hash, split_hash, split_table
from fedvlp.utils.errors import UserError
from tests.helpers.data import images, split


def rows(part):
    """Get the rows of a part with one domain."""
    (found,) = part.rows_by_domain.values()
    return found


def of(parts, role):
    return [part for part in parts if part.role == role]


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_every_class_is_on_both_sides(fraction):
    labels = np.repeat(np.arange(6), [1, 2, 3, 10, 55, 100])
    train, validation = stratified_split(labels, fraction, np.random.default_rng(0))
    assert sorted([*train, *validation]) == list(range(len(labels)))
    counts = np.bincount(labels[validation], minlength=6)
    assert counts[0] == 0  # the only image of a class trains
    for size, count in zip([2, 3, 10, 55, 100], counts[1:], strict=True):
        assert count == min(max(round(fraction * size), 1), size - 1)


def test_few_shots_are_nested():
    labels = np.random.default_rng(1).integers(0, 5, 100)
    chosen = [set(few_shot(labels, shots, np.random.default_rng(7)).tolist()) for shots in (1, 2, 4, 8, 16)]
    assert [len(found) for found in chosen] == [5, 10, 20, 40, 80]
    assert all(fewer < more for fewer, more in pairwise(chosen))
    assert chosen[0] != set(few_shot(labels, 1, np.random.default_rng(8)).tolist())


OFFICIAL = {"train": np.arange(3, 25), "validation": np.asarray([0, 2]), "test": np.asarray([1])}


@pytest.mark.parametrize("named", [(), ("train",), ("train", "test"), ("train", "validation"), tuple(OFFICIAL)])
def test_official_roles_are_kept_and_the_others_drawn_from_training_images(named):
    labels = np.repeat(np.arange(3), [9, 4, 12])
    official = {role: OFFICIAL[role] for role in named}
    roles = SplitRule(0.25, test_fraction=0.25).divide(labels, "ink", official)
    for role in named:
        assert role == "train" or roles[role].tolist() == official[role].tolist()
    drawn_from = official.get("train", np.arange(25)).tolist()
    drawn = list(chain.from_iterable(roles[role].tolist() for role in roles if role == "train" or role not in named))
    assert sorted(drawn) == drawn_from
    for role in ("validation", "test"):
        if role not in named:
            assert set(labels[roles[role]]) == {0, 1, 2}


def test_a_client_without_training_image_is_refused():
    with pytest.raises(UserError, match="'b' has no training image"):
        split({"a": images([2, 2]), "b": images([0])}, ["a", "b"], [])
    with pytest.raises(UserError, match=r"at least 5 training images .*got 2.*more images \(shots"):
        split({"a": images([9, 9])}, ["a"], [], shots=1, partitioner=Dispersed(5))


def test_several_clients_a_domain_get_names_and_rows_of_their_own():
    domains = {"a": images([10, 10]), "b": images([15])}
    parts = split(domains, ["a", "b"], [], partitioner=Dispersed(3))
    clients = [part.clients[0] for part in of(parts, "train")]
    assert [(client.name, client.domain, client.num_examples) for client in clients] == [
        ("a 1", 0, 8), ("a 2", 0, 8), ("b", 1, 12),
    ]  # fmt: skip
    assert [part.clients for part in of(parts, "validation")] == [tuple(clients[:2]), tuple(clients[2:])]
    found = np.concatenate([rows(part) for part in parts if part.domains == ["a"]])
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("partitioner", [Dispersed(6), Dirichlet(4)], ids=repr)
def test_measured_images_do_not_depend_on_the_clients(partitioner):
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


def test_a_client_of_several_domains_does_not_claim_one():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}
    parts = split(domains, ["a", "b"], [], seed=1, partitioner=Dirichlet(3, alpha=100.0))
    trains = of(parts, "train")
    assert [part.name for part in trains] == ["train/client 1", "train/client 2", "train/client 3"]
    assert all(part.clients[0].domain == -1 for part in trains)
    assert sum(len(part) for part in trains) == sum(part.clients[0].num_examples for part in trains) == 48
    for part in trains:
        assert part.domains == ["a", "b"]
        assert all((np.diff(found) > 0).all() for found in part.rows_by_domain.values())
    assert [len(part.clients) for part in of(parts, "validation")] == [3, 3]


@pytest.mark.parametrize(
    ("shots", "partitioner"), [(1, ByDomain()), (4, Dispersed(4)), (16, Dirichlet(2, 50.0))], ids=repr
)
def test_few_shot_is_exact_over_all_clients_of_a_domain(shots, partitioner):
    domains = {"a": images([30, 30, 30], "a"), "b": images([25, 10, 3], "b")}
    parts = split(domains, ["a", "b"], [], shots=shots, partitioner=partitioner)
    whole = split(domains, ["a", "b"], [])
    for name in domains:
        found = np.concatenate([part.rows_by_domain.get(name, []) for part in of(parts, "train")]).astype(int)
        (all_rows,) = [rows(part) for part in of(whole, "train") if part.domains == [name]]
        available = np.bincount(domains[name].labels[all_rows], minlength=3)
        assert np.bincount(domains[name].labels[found], minlength=3).tolist() == np.minimum(available, shots).tolist()
        assert set(found.tolist()) <= set(all_rows.tolist())
    for one, two in zip(of(parts, "validation"), of(whole, "validation"), strict=True):
        assert rows(one).tolist() == rows(two).tolist()


def test_split_table_names_the_client_only_where_there_is_one():
    domains = {"b": images([3, 2], "b")}
    parts = [
        SplitPart("train", {"b": np.asarray([4, 0])}, (Client(3, 0, 2, "b 1"),)),
        SplitPart("validation", {"b": np.asarray([1])}, (Client(3, 0, 2, "b 1"), Client(5, 0, 1, "b 2"))),
    ]
    assert split_table(parts, domains) == [
        {"role": "train", "domain": "b", "client": 3, "images": ["b/4", "b/0"]},
        {"role": "validation", "domain": "b", "client": None, "images": ["b/1"]},
    ]


def test_split_hash_tells_clients_apart_unless_they_are_domains():
    domains = {"a": images([10, 10], "a"), "b": images([20, 20], "b")}

    def value(partitioner, **options):
        return split_hash(split(domains, ["a", "b"], [], partitioner=partitioner, **options), domains, ["x", "y"])

    plain = value(ByDomain())
    assert plain == value(Dispersed(2, alpha=0.1))  # one client per domain, whatever its name
    others = [value(each) for each in (Dispersed(4), Dispersed(4, alpha=1.0), Dispersed(3), Dirichlet(2), Shards(2))]
    others += [value(ByDomain(), shots=2), value(ByDomain(), test_fraction=0.2)]
    assert len({plain, *others}) == 8


def test_split_hash_follows_role_domain_name_and_class_but_not_the_order_of_parts():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}

    def value(sources=("a",), held_out=("b",), seed=0, names=("x", "y"), of=domains):
        parts = split(of, sources, held_out, seed=seed)
        assert split_hash(parts[::-1], of, names) == split_hash(parts, of, names)
        return split_hash(parts, of, names)

    renamed = {"a": images([5, 5], "z"), "b": domains["b"]}
    relabelled = {"a": images([6, 4], "a"), "b": domains["b"]}
    others = [value(("b",), ("a",)), value(("a", "b"), ()), value(seed=1), value(names=("x", "z"))]
    others += [value(of=renamed), value(of=relabelled)]
    assert len({value(), *others}) == 7


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
    """Otherwise results of an earlier version could neither be resumed nor compared."""
    domains = {"b": images([9, 4, 6], "b"), "a": images([5, 8, 3], "a"), "c": images([2, 7], "c")}
    parts = split(domains, ["b", "a"], ["c"], 0.3, seed=5, partitioner=partitioner, **options)
    assert split_hash(parts, domains, ["x", "z", "y"]) == expected


def test_image_hash_follows_names_classes_and_domains_of_all_images():
    domains = {"a": images([2, 1], "a"), "b": images([1, 1], "b")}
    classes = ["x", "y"]
    others = [
        ({"a": domains["a"]}, classes),
        ({"a": domains["b"], "b": domains["a"]}, classes),
        ({"a": images([1, 2], "a"), "b": domains["b"]}, classes),
        ({"a": images([2, 1], "z"), "b": domains["b"]}, classes),
        (domains, ["y", "x"]),
    ]
    assert len({image_hash(domains, classes), *(image_hash(*other) for other in others)}) == 6
    assert image_hash(domains, classes) == image_hash(dict(reversed(domains.items())), classes)
    lines = ["a\0a/0\0x", "a\0a/1\0x", "a\0a/2\0y", "b\0b/0\0x", "b\0b/1\0y"]
    assert image_hash(domains, classes) == hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
