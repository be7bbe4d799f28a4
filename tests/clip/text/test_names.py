from __future__ import annotations

import pytest

from fedvlp.clip import clean_class_name, clean_class_names


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [("Alarm_Clock", "Alarm Clock"), ("t-shirt", "t shirt"), ("  a__b - c ", "a b c"), ("vélo_TV", "vélo TV")],
)
def test_names_are_words(name, cleaned):
    assert clean_class_name(name) == cleaned
    assert clean_class_name(cleaned) == cleaned


def test_overrides_win_by_either_spelling_and_stay_as_they_are():
    overrides = {"Postit_Notes": "post-it notes", "Desk Lamp": "lamp for a desk"}
    assert clean_class_names(["Postit_Notes", "Desk_Lamp", "Sink"], overrides) == [
        "post-it notes",
        "lamp for a desk",
        "Sink",
    ]
