"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there.

The checks are those of ``fedvlp.testing``, which methods of others are held to as well.
"""

from __future__ import annotations

from functools import partial

import pytest

from fedvlp.testing.method import METHOD_CHECKS
from fedvlp.testing.runs import MethodContract
from tests.helpers.configs import METHODS
from tests.helpers.runs import make_run


@pytest.fixture(scope="module", params=METHODS)
def contract(request, image_root, tmp_path_factory) -> MethodContract:
    """The runs of a config. Tests are ordered by it, so that its whole run is made once."""
    folder = tmp_path_factory.mktemp(request.param)
    return MethodContract(partial(make_run, image_root, folder, request.param), folder)


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_every_method(check, contract):
    check(contract)
