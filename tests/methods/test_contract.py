"""The contract of every method, checked through its config on the tiny CLIP. A new config is tested by its presence.

The checks are those of ``fedvlp.testing``, which also apply to other people's methods. All checks of a config are one
test, since each process of pytest-xdist would make its own run.
"""

import pytest

from fedvlp.callbacks import Communication
from fedvlp.testing import ContractError
from fedvlp.testing import method as checks
from fedvlp.testing.runs import train_reference
from tests.helpers.configs import KINDS, LIKE_ANOTHER, METHODS, each_config, few_templates
from tests.helpers.runs import make_run

TRAINING = {
    checks.check_resumed_run,
    checks.check_determinism,
    checks.check_partial_participation,
    checks.check_lightning_trainer,
    checks.check_deployed_file,
}
"""Checks that train or evaluate again. By default they run for the twelve configs that differ in kind."""
NO_FILES = "--trainer.runtime.default_callbacks=false"
SELDOM = ("--trainer.baselines=[]", "--trainer.evaluate_every=2")
"""Fewer evaluations, for all methods but zero-shot CLIP, which is a baseline, and SWAD, which needs validation."""


def check_config(config, chosen, image_root, folder, *options):
    """Checks a run of two steps a client in each round."""
    options = [*few_templates(config), "--trainer.local.epochs=1", "--trainer.local.steps=2", *options]

    def build(*more):
        run = make_run(image_root, folder, config, *options, *more)
        if NO_FILES in options:
            run.trainer.add_callback(Communication())
        return run

    reference = train_reference(build)
    problems = []
    for check in chosen:
        try:
            check(reference)
        except ContractError as error:
            problems.append(f"{check.__name__}: {error}")
    assert not problems


@pytest.mark.parametrize("config", each_config())
def test_every_method(config, image_root, tmp_path):
    seldom = SELDOM if config not in ("swad", "zero_shot", "zero_shot_ensemble") else ()
    check_config(config, checks.METHOD_CHECKS, image_root, tmp_path, *seldom)


@pytest.mark.parametrize("config", sorted({*METHODS} - KINDS - LIKE_ANOTHER))
def test_every_method_briefly(config, image_root, tmp_path):
    brief = [check for check in checks.METHOD_CHECKS if check not in TRAINING]
    check_config(config, brief, image_root, tmp_path, *SELDOM, NO_FILES)
