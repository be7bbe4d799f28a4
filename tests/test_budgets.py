"""The size of the house has limits: who needs more raises a number here, and the CHANGELOG says what it buys."""

from pathlib import Path

import pytest

from benchmarks.house import House

HOUSE = House(Path(__file__).parents[1])
TABLE = HOUSE.table()
WHOLE = {
    "lines": 39_736,
    "files": 255,
    "lines outside tools and sites": 28_256,
    "folders": 14,
    "floors of modules": 20,
    "trainer options": 15,
    "groups of trainer options": 4,
    "lines of tests": 39_012,
    "classes between a method and LightningModule": 2,
}
LEAST_COMMENTS = 1000
ROOMS = {  # lines and files of each folder of the library
    "callbacks": (862, 7),
    "catalog": (400, 2),
    "clip": (3176, 15),
    "commands": (678, 4),
    "core": (2954, 16),
    "data": (4800, 22),
    "methods": (7531, 53),
    "results": (880, 5),
    "runs": (1000, 7),
    "sites": (3358, 18),
    "testing": (900, 6),
    "tools": (8122, 59),
    "training": (3937, 26),
    "utils": (1000, 11),
}


@pytest.mark.parametrize("measure", WHOLE)
def test_the_house_keeps_its_size(measure):
    assert TABLE[measure] <= WHOLE[measure]


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
