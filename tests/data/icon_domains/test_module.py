import hashlib
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from fedvlp.data import IconDomains, IconScenes
from fedvlp.data.icon_domains.module import FOLDER, manifest
from fedvlp.utils.errors import UserError


@pytest.fixture(scope="module")
def whole():
    return IconDomains()


def test_each_style_is_a_domain_and_draws_every_class(whole):
    assert whole.domains == ["colour", "duotone", "emoji", "line", "pixel", "solid"]
    assert len(whole.class_names) == 109
    for images in whole.images.values():
        of_class = np.bincount(images.labels, minlength=109)
        assert of_class.min() >= 1
        assert of_class.max() <= 6


def test_images_are_those_of_the_manifest(whole):
    rows = manifest()
    domains = whole.images
    by_name = {}
    for images in domains.values():
        for name, pixels in zip(images.names, images.arrays, strict=True):
            by_name[name] = hashlib.sha256(pixels.tobytes()).hexdigest()[:16]
    names = [f"{row['domain']}/{row['class']}/{row['set']}:{row['icon']}" for row in rows]
    assert [by_name[name] for name in names] == [row["sha256"] for row in rows]
    assert len(set(by_name.values())) == len(rows) == sum(map(len, domains.values()))


def test_no_set_draws_for_two_domains_and_each_has_its_licence():
    sets = {}
    for row in manifest():
        sets.setdefault(row["domain"], Counter())[row["set"]] += 1
    for first, second in combinations(sets.values(), 2):
        assert not first & second
    assert min(map(len, sets.values())) >= 3
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 3e6
    licences = (FOLDER / "LICENCES.md").read_text(encoding="utf-8")
    for domain, of_domain in sets.items():
        for name in of_domain:
            assert f"| {domain} | {name} | " in licences


def test_fewer_classes_have_the_same_images(whole):
    few = IconDomains(num_classes=5)
    assert few.class_names == whole.class_names[:5]
    for domain, images in few.images.items():
        places = np.flatnonzero(np.asarray(whole.images[domain].labels) < 5)
        assert images.names == [whole.images[domain].names[place] for place in places]
        assert np.array_equal(np.asarray(images[-1]), np.asarray(whole.images[domain][int(places[-1])]))
        assert np.array_equal(images.labels, whole.images[domain].labels[places])


def test_no_class_and_more_than_there_are_is_an_error():
    for number in (1, 110):
        with pytest.raises(UserError, match=f"num_classes from 2 to 109; got {number}"):
            IconDomains(num_classes=number).load_domains()


@pytest.fixture(scope="module")
def scenes():
    return IconScenes(held_out="pixel")


def test_scenes_show_exactly_the_icons_of_their_labels(scenes, whole):
    assert scenes.class_names == whole.class_names
    images, sets = scenes.images["emoji"], scenes._loaded[1]
    icons = {pixels.tobytes(): name.split("/")[1] for name, pixels in icons_of(whole, "emoji")}
    for row, label in enumerate(images.labels):
        height, width, _ = images.arrays[row].shape
        places = images.arrays[row].reshape(2, height // 2, 2, width // 2, 3).swapaxes(1, 2).reshape(4, -1)
        shown = sorted(icons[place.tobytes()] for place in places if place.min() < 255)
        assert shown == sets[label].split("|")
        assert 2 <= len(shown) <= 4


def icons_of(data, domain):
    return zip(data.images[domain].names, data.images[domain].arrays, strict=True)


def test_no_icon_is_on_two_sides_of_the_split(scenes):
    sides = {}
    for part in scenes.split_parts:
        side = part.role if part.role in ("train", "validation") else "test"
        for domain, rows in part.rows_by_domain.items():
            for row in rows:
                sides.setdefault(scenes.groups[domain][row], set()).add(side)
    assert all(len(found) == 1 for found in sides.values())
    assert {side for found in sides.values() for side in found} == {"train", "validation", "test"}


def test_scenes_depend_only_on_their_seed(scenes):
    assert IconScenes(held_out="pixel").split_hash == scenes.split_hash
    assert IconScenes(held_out="pixel", scenes_seed=1).split_hash != scenes.split_hash
