from __future__ import annotations

import numpy as np
import pytest

from fedvlp.data import ArrayImages, by_domain, stratified_split
from fedvlp.data.splits import deal, generator_for, split_hash
from fedvlp.errors import UserError


def images(counts, prefix="x"):
    labels = np.repeat(np.arange(len(counts)), counts)
    return ArrayImages(
        np.zeros((len(labels), 2, 2, 3), np.uint8), labels, [f"{prefix}/{i}" for i in range(len(labels))]
    )


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
    shares = deal(domains, ["a", "c"], ["b"], 0.2, seed=0)
    assert [share.name for share in shares] == ["train/a", "train/c", "validation/a", "validation/c", "held_out/b"]
    assert [share.client and share.client.id for share in shares] == [0, 1, 0, 1, None]
    assert [share.client.num_examples for share in shares[:2]] == [len(share.rows) for share in shares[:2]] == [8, 4]
    assert shares[4].rows.tolist() == list(range(10))


def test_a_split_does_not_depend_on_other_domains():
    domains = {"a": images([9, 9]), "b": images([4, 6]), "c": images([3, 3])}
    alone = deal(domains, ["c"], [], 0.3, seed=4)
    among = deal(domains, ["a", "b", "c"], [], 0.3, seed=4)
    assert alone[0].rows.tolist() == among[2].rows.tolist()


def test_an_empty_validation_split_is_left_out():
    shares = deal({"a": images([1, 1]), "b": images([2, 2])}, ["a", "b"], [], 0.2, seed=0)
    assert [share.name for share in shares] == ["train/a", "train/b", "validation/b"]


def test_a_client_without_training_image_is_refused():
    with pytest.raises(UserError, match="'b' has no training image"):
        deal({"a": images([2, 2]), "b": images([0])}, ["a", "b"], [], 0.2, seed=0)


def test_several_clients_a_domain_get_names_and_rows_of_their_own():
    def halves(labels, domains, generator):
        return [part for rows in by_domain(labels, domains, generator) for part in np.array_split(rows, 2)]

    shares = deal({"a": images([4, 4]), "b": images([6])}, ["a", "b"], [], 0.3, seed=0, partitioner=halves)
    trains = [share for share in shares if share.role == "train"]
    assert [share.client.name for share in trains] == ["a 1", "a 2", "b 1", "b 2"]
    assert [share.client.domain for share in trains] == [0, 0, 1, 1]
    rows = [row for share in shares if share.domain == "b" for row in share.rows]
    assert sorted(rows) == list(range(6))


def test_a_client_of_two_domains_is_refused():
    def together(labels, domains, generator):
        return [np.arange(len(labels))]

    with pytest.raises(UserError, match="images of one domain"):
        deal({"a": images([2]), "b": images([2])}, ["a", "b"], [], 0.2, seed=0, partitioner=together)


def test_split_hash_follows_role_domain_name_and_class():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}

    def value(sources=("a",), held_out=("b",), seed=0, names=("x", "y"), of=domains):
        return split_hash(deal(of, sources, held_out, 0.2, seed), of, names)

    assert value() == value()
    assert len(value()) == 16
    renamed = {"a": images([5, 5], "z"), "b": domains["b"]}
    relabelled = {"a": images([6, 4], "a"), "b": domains["b"]}
    others = [value(("b",), ("a",)), value(("a", "b"), ()), value(seed=1), value(names=("x", "z"))]
    others += [value(of=renamed), value(of=relabelled)]
    assert len({value(), *others}) == 7


def test_split_hash_does_not_follow_the_order_of_shares():
    domains = {"a": images([5, 5], "a"), "b": images([4, 6], "b")}
    shares = deal(domains, ["a", "b"], [], 0.2, seed=0)
    assert split_hash(shares, domains, ["x", "y"]) == split_hash(shares[::-1], domains, ["x", "y"])
