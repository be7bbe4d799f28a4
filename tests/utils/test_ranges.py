"""What a range holds, beside a slow and obvious reading of its own words."""

import math

import pytest

from fedvlp.utils.ranges import DistinctNames, FolderName, Range

BOUNDS = [None, -2, 0.5, 3]


def allowed(value, least, most, above, below):
    """One bound after another."""
    if least is not None and value < least:
        return False
    if most is not None and value > most:
        return False
    if above is not None and value <= above:
        return False
    return below is None or value < below


@pytest.mark.parametrize("least", BOUNDS)
@pytest.mark.parametrize("below", BOUNDS)
@pytest.mark.parametrize(("above", "most"), [(None, None), (-2, None), (None, 0.5), (0, 3)])
def test_a_range_holds_what_its_bounds_say(least, most, above, below):
    kept = Range(least, most, above, below)
    for value in (-3, -2, 0, 0.25, 0.5, 2.5, 3, 7):
        assert (kept.refusal(value) == "") == allowed(value, least, most, above, below)


def test_nan_is_in_no_range():
    for kept in (Range(0), Range(above=0), Range(most=1), Range(below=1), Range(0, limit=5)):
        assert kept.refusal(math.nan)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (Range(1), "at least 1"),
        (Range(above=0), "above 0"),
        (Range(most=2.5), "at most 2.5"),
        (Range(above=0, below=1), "in (0, 1)"),
        (Range(0, below=1), "in [0, 1)"),
        (Range(1, 80), "in [1, 80]"),
        (Range(1, limit=9), "at least 1"),
    ],
)
def test_a_range_in_words(kept, text):
    assert kept.text == text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one"),
        (["dog", " "], "no empty"),
        (["dog", "cat", "dog", "cat", "dog"], "'dog' is there 3 times"),
        (["cat", "d" * 1001], "that begins 'dddddddddddddddddddd' has 1001"),
    ],
)
def test_names_that_nobody_can_tell_apart(names, message):
    assert message in DistinctNames().refusal(names)


def test_names_that_are_well():
    assert DistinctNames().refusal(["dog", "Dog", "dog 2", "狗", "d" * 1000]) == ""


@pytest.mark.parametrize("name", ["", "  ", "../x", "a/../../x", "/tmp/x", "a\nb", "a\0b", "x" * 256, "."])
def test_folder_names_that_are_refused(name):
    assert FolderName().refusal(name)


@pytest.mark.parametrize("name", ["run", "first/run", "a..b", "x" * 255, "größe 2"])
def test_folder_names_that_are_well(name):
    assert FolderName().refusal(name) == ""
