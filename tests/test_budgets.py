"""The package stays within two ceilings: its number of lines, and the longest chain of imports between its modules."""

from pathlib import Path

import pytest

from benchmarks.house import House

CEILINGS = {"lines": 37_400, "modules on the longest chain of imports": 17}


@pytest.fixture(scope="module")
def measures():
    return House(Path(__file__).parents[1]).table()


@pytest.mark.parametrize("measure", CEILINGS)
def test_the_package_stays_below_its_ceiling(measures, measure):
    assert measures[measure] <= CEILINGS[measure]
