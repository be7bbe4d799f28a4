"""The package stays within two ceilings: its number of lines, and the longest chain of imports between its modules."""

from pathlib import Path

from benchmarks.house import House

MOST_LINES = 40_100
LONGEST_CHAIN = 17


def test_the_package_stays_below_its_ceilings():
    house = House(Path(__file__).parents[1])
    assert house.lines() <= MOST_LINES
    assert house.floors <= LONGEST_CHAIN
