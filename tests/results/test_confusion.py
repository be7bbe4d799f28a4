"""``confusion.csv``: what is written is read back, and damage is named."""

from __future__ import annotations

from collections import Counter

import pytest

from fedvlp.results.confusion import FILE, confusion_text, read_confusions
from fedvlp.utils.errors import UserError

NAMES = ["a, b", "=dog", "猫"]
COUNTED = {
    "zero-shot CLIP": {"held_out/ink": Counter({(0, 0): 3, (1, 2): 4})},
    "last round": {"held_out/ink": Counter({(2, 1): 5}), "test/oil, paint": Counter({(0, 1): 2})},
}


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / FILE).write_text(confusion_text(COUNTED, NAMES) + "\n", encoding="utf-8")
    assert read_confusions(tmp_path, NAMES) == COUNTED
    assert read_confusions(tmp_path / "nowhere", NAMES) == {}


@pytest.mark.parametrize("damage", [("true", "label"), ("'=dog", "wolf"), (",5", ",many"), (",4\n", "\n")])
def test_damage_is_named(tmp_path, damage):
    text = confusion_text(COUNTED, NAMES)
    assert damage[0] in text
    (tmp_path / FILE).write_text(text.replace(*damage), encoding="utf-8")
    with pytest.raises(UserError, match=r"confusion\.csv is damaged"):
        read_confusions(tmp_path, NAMES)
