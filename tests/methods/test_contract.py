"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there.

The checks are those of ``fedvlp.testing``, which methods of others are held to as well.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from fedvlp.testing import method as checks
from fedvlp.testing.runs import WholeRun, whole_run
from tests.helpers.configs import KINDS, METHODS, few_templates
from tests.helpers.runs import make_run


@pytest.fixture(scope="module")
def whole(request, image_root, tmp_path_factory) -> WholeRun:
    """The run of a config, of two steps a client in each round. Tests are ordered by it, so that it is made once."""
    options = [*few_templates(request.param), "--trainer.local.epochs=1", "--trainer.local.steps=2"]
    return whole_run(partial(make_run, image_root, tmp_path_factory.mktemp(request.param), request.param, *options))


TRAINING = {
    checks.a_resumed_run_equals_an_unbroken_one,
    checks.order_of_clients_and_global_generator_do_not_matter,
    checks.takes_part_of_the_clients,
    checks.a_plain_trainer_trains_it,
    checks.a_deployed_file_scores_the_same,
}
"""Checks that train or evaluate again. By default they run for the twelve configs that differ in kind."""
CASES = []
for _config, _check in product(METHODS, checks.METHOD_CHECKS):
    _marks = [pytest.mark.every_config] if _check in TRAINING and _config not in KINDS else []
    CASES.append(pytest.param(_config, _check, marks=_marks, id=f"{_config}-{_check.__name__}"))


@pytest.mark.parametrize(("whole", "check"), CASES, indirect=["whole"], scope="module")
def test_every_method(check, whole):
    check(whole)
