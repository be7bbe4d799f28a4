"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there.

The checks are those of ``fedvlp.testing``, which methods of others are held to as well.
"""

from __future__ import annotations

from functools import partial

import pytest

from fedvlp.testing.method import METHOD_CHECKS
from fedvlp.testing.runs import WholeRun, whole_run
from tests.helpers.configs import METHODS, few_templates
from tests.helpers.runs import make_run


@pytest.fixture(scope="module", params=METHODS)
def whole(request, image_root, tmp_path_factory) -> WholeRun:
    """The run of a config. Tests are ordered by it, so that it is made once."""
    method = [request.param, *few_templates(request.param)]
    return whole_run(partial(make_run, image_root, tmp_path_factory.mktemp(request.param), *method))


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_every_method(check, whole):
    check(whole)
