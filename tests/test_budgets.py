"""The size of the house has limits: who needs more raises a number here, and the CHANGELOG says what it buys."""

from pathlib import Path

import pytest

from benchmarks.house import House

HOUSE = House(Path(__file__).parents[1])
WHOLE = {
    "lines": 54_700,
    "files": 560,
    "lines outside tools and sites": 41_900,
    "folders": 15,
    "floors of modules": 34,
    "trainer options": 38,
    "groups of trainer options": 4,
    "lines of tests": 44_000,
    "classes between a method and LightningModule": 5,
}
LEAST_COMMENTS = 240
ROOMS = {  # lines and files of each folder
    "callbacks": (1250, 16),
}


@pytest.mark.parametrize("measure", WHOLE)
def test_the_house_keeps_its_size(measure):
    assert HOUSE.table()[measure] <= WHOLE[measure]


def test_dense_code_says_why():
    assert HOUSE.comments >= LEAST_COMMENTS


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_its_size(room):
    lines, files = HOUSE.rooms[room]
    most_lines, most_files = ROOMS[room]
    assert lines <= most_lines
    assert files <= most_files


def test_each_room_has_a_limit():
    assert set(HOUSE.rooms) == set(ROOMS)
