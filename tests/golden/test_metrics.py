"""Every method reproduces its stored metrics, which reveals accidental changes."""

import pytest

from tests.golden.metrics import differences, measure, stored
from tests.helpers.configs import METHODS, each_config


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("config", each_config(stored(), {"fed_ncm", "promptfl", "trip"}))
def test_metrics_match_the_stored_metrics(config, tmp_path):
    assert not differences(measure(config, tmp_path), stored()[config])


def test_every_stored_line_has_a_config():
    assert set(stored()) <= set(METHODS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss_1": "1.01"}, ["loss_1: 1.01, stored 1.0"]),
        ({"loss_1": "1.00009", "validation": "51.9"}, []),
        ({"held_out": "52.5"}, ["held_out: 52.5, stored 50.0"]),
        ({"loss_2": ""}, ["loss_2: none, stored 1.0"]),
    ],
)
def test_differences_beyond_the_tolerance_are_listed(changed, message):
    golden = {"loss_1": "1.0", "loss_2": "1.0", "norm": "3.0", "validation": "50.0", "held_out": "50.0"}
    assert differences(golden | changed, golden) == message
