"""Runs of three methods with two held-out domains, and two seeds for trained methods."""

from datetime import date

import pytest

from fedvlp.results import find_records
from fedvlp.tools.compare.tables import tables
from fedvlp.tools.report.page import report_page
from tests.helpers.report_runs import write_run


def write_runs(folder):
    """Write the runs. TRIP is better than PromptFL, and its second seed is two points better than its first."""
    for held_out, more in (("photo", 0.0), ("sketch", 10.0)):
        for seed in (0, 1):
            write_run(folder, [50.0 + more, 52.0 + more + 2 * seed], held_out, seed, parameters=400)
            write_run(folder, [45.0 + more, 44.0 + more], held_out, seed, "PromptFL", {}, parameters=100)
        write_run(folder, [], held_out, 0, "ZeroShotCLIP", {"templates": 1}, parameters=0)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Write the runs to a folder that a test may change."""
    return write_runs(tmp_path)


@pytest.fixture(scope="session")
def whole_page(tmp_path_factory):
    records, problems = find_records([write_runs(tmp_path_factory.mktemp("runs"))])
    return report_page(records, problems, "Three methods", date(2026, 3, 9))


@pytest.fixture
def no_figures(monkeypatch):
    """Skip the figures of tables, which take most of the time."""
    monkeypatch.setattr("fedvlp.tools.report.page.draw_figures", lambda table: iter(()))


@pytest.fixture
def table(runs):
    (only,) = tables(find_records([runs])[0])
    return only
