"""Whose the images of a run are, and which of them an attack is made on."""

from __future__ import annotations

import pytest
import torch

from fedvlp.data import Dirichlet, Pooled
from fedvlp.tools.audit.images import images_of_run
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.targets import choose_targets
from fedvlp.utils.errors import UserError

SPREAD = Dirichlet(num_clients=3, alpha=1.0)


def names_by_owner(data, role):
    return {
        (entry["client"], entry["domain"]): entry["images"] for entry in data.split_table() if entry["role"] == role
    }


@pytest.mark.parametrize("partition", [None, SPREAD], ids=["domains", "mixed"])
def test_groups_are_those_of_the_split(folders, clip, partition):
    data = folders(clip, partition=partition)
    images = images_of_run(data)
    found = {}
    for client, groups in images.training.items():
        for group in groups:
            found[client.id, group.domain] = list(group.names)
            pixels = group.read(range(len(group)))
            for index, position in enumerate(group.positions):
                expected, label = group.dataset[position]
                assert torch.equal(pixels[index], expected)
                assert int(group.labels[index]) == label
    assert found == names_by_owner(data, "train")
    assert images.role == "validation"
    measured = {domain: list(group.names) for domain, group in images.measured.items()}
    assert measured == {domain: names for (_, domain), names in names_by_owner(data, "validation").items()}


def test_test_images_are_taken_where_there_are_any(folders, clip):
    images = images_of_run(folders(clip, test_fraction=0.25))
    assert images.role == "test"
    assert list(images.measured) == ["ink", "paint"], "nobody trained on photo, so it says nothing of membership"


def test_a_sample_keeps_its_order_and_draws_all_if_there_are_few(folders, clip):
    (group,) = next(iter(images_of_run(folders(clip)).training.values()))
    some = group.sample(4, torch.Generator().manual_seed(0))
    places = [list(group.names).index(name) for name in some.names]
    assert len(some) == 4
    assert places == sorted(places)
    assert torch.equal(some.read([2]), group.read([places[2]]))
    assert list(group.sample(99, torch.Generator()).names) == list(group.names)


def test_targets_are_of_the_clients_in_turn_and_each_once(folders, clip):
    images = images_of_run(folders(clip))
    targets = choose_targets(images, InversionOptions(gradients=5, images=2), seed=1)
    assert [target.client.name for target in targets] == ["ink", "paint", "ink", "paint", "ink"]
    of_ink = [name for target in targets[::2] for name in target.names]
    assert len(set(of_ink)) == 6
    again = choose_targets(images, InversionOptions(gradients=5, images=2), seed=1)
    assert [target.names for target in again] == [target.names for target in targets]
    other = choose_targets(images, InversionOptions(gradients=5, images=2), seed=2)
    assert [target.names for target in other] != [target.names for target in targets]


def test_beside_each_target_stands_another_image_of_its_class(folders, clip):
    images = images_of_run(folders(clip))
    known = []
    for groups in images.training.values():
        for group in groups:
            known += list(zip(group.labels.tolist(), group.read(range(len(group))), strict=True))
    for target in choose_targets(images, InversionOptions(gradients=4, images=2), seed=3):
        for label, image, other in zip(target.labels.tolist(), target.images, target.of_same_class, strict=True):
            assert not torch.equal(image, other)
            assert any(label == of and torch.equal(other, pixels) for of, pixels in known)


def test_more_images_than_a_client_has_are_refused(folders, clip):
    images = images_of_run(folders(clip))
    with pytest.raises(UserError, match=r"'ink' has 9 training images, fewer than inversion\.images"):
        choose_targets(images, InversionOptions(images=10), seed=0)


def test_images_in_one_place_are_not_audited(folders, clip):
    with pytest.raises(UserError, match="nothing was sent"):
        images_of_run(folders(clip, partition=Pooled()))
