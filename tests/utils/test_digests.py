"""Digests of code: they change when what it calls changes, and with nothing else."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

from fedvlp.methods import TRIP, DiPrompT, PromptFL, SingleDomain, ZeroShotCLIP
from fedvlp.utils.digests import code_digest

MODULES = {
    "made_up_method": "from made_up_helpers.first import first\ndef prepare():\n    return first()",
    "made_up_helpers": "",
    "made_up_helpers.first": "from made_up_helpers import second\ndef first():\n    return second.value()",
    "made_up_helpers.second": "def value():\n    return 1",
    "made_up_helpers.third": "def unused():\n    return 1",
}


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Returns a function that changes a module's source and gives the digest of ``made_up_method.prepare``."""
    monkeypatch.syspath_prepend(tmp_path)

    def path(name):
        place = tmp_path.joinpath(*name.split("."))
        return place / "__init__.py" if name == "made_up_helpers" else place.with_suffix(".py")

    for name, source in MODULES.items():
        path(name).parent.mkdir(exist_ok=True)
        path(name).write_text(source)
    importlib.invalidate_caches()
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    count = iter(range(1, 100))

    def digest_after(name="", source="", packages=("made_up_helpers",)):
        if name:
            path(name).write_text(source)
            os.utime(path(name), (next(count), 0))
        return code_digest(importlib.import_module("made_up_method").prepare, packages)

    return digest_after


def test_a_digest_follows_all_that_the_code_refers_to(digest):
    first = digest()
    assert digest() == first
    assert digest("made_up_helpers.third", "def unused():\n    return 2") == first
    second = digest("made_up_helpers.second", "def value():\n    return 2")
    assert second != first
    assert digest("made_up_method", MODULES["made_up_method"] + "\nX = 1") not in (first, second)


def test_other_packages_are_not_followed(digest):
    first = digest(packages=())
    assert digest("made_up_helpers.second", "def value():\n    return 2", packages=()) == first


def test_methods_with_plain_image_features_share_them(clip):
    names = ["a", "b"]
    plain = [ZeroShotCLIP(names, clip), PromptFL(names[:1], clip), SingleDomain(names, clip)]
    plain.append(DiPrompT(names, ["x", "y"], clip))
    assert len({module.precompute_key() for module in plain}) == 1
    assert PromptFL(names, clip, kl_weight=0.5).precompute_key() == plain[0].precompute_key()
    others = [TRIP(names, clip), TRIP(names, clip, num_experts=2)]
    assert len({module.precompute_key() for module in [plain[0], *others]}) == 3
