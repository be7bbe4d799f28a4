from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations

import numpy as np

from fedvlp.data import IconDomains
from fedvlp.data.icon_domains.module import FOLDER, manifest


def test_each_style_is_a_domain_and_draws_every_class():
    data = IconDomains(held_out="pixel")
    assert data.domains == ["colour", "duotone", "emoji", "line", "pixel", "solid"]
    assert len(data.class_names) == 109
    for images in data.images.values():
        of_class = np.bincount(images.labels, minlength=109)
        assert of_class.min() >= 1
        assert of_class.max() <= 6


def test_images_are_those_of_the_manifest():
    rows = manifest()
    domains = IconDomains().images
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
    licences = (FOLDER / "LICENCES.md").read_text(encoding="utf-8")
    for domain, of_domain in sets.items():
        for name in of_domain:
            assert f"| {domain} | {name} | " in licences


def test_it_is_small_enough_to_come_with_the_package():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 3e6
