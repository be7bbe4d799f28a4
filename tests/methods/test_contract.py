"""The contract of every method, checked through its config on the tiny CLIP. New configs are found automatically.

The checks come from ``fedvlp.testing`` and also apply to methods outside fedvlp. All checks of a config are one test,
because each process of pytest-xdist would otherwise train its own run.
"""

import pytest

from fedvlp.callbacks import Communication
from fedvlp.runs.descriptions import describe_model
from fedvlp.testing import ContractError
from fedvlp.testing import method as checks
from fedvlp.testing.runs import train_reference
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.configs import EQUIVALENT, KINDS, METHODS, each_config, few_templates
from tests.helpers.runs import make_run, remake_run

TRAINING = {
    checks.check_resumed_run,
    checks.check_determinism,
    checks.check_partial_participation,
    checks.check_lightning_trainer,
    checks.check_deployed_file,
}
"""Checks that train or evaluate again. By default, they run only for the twelve configs in ``KINDS``.

They never run for the configs in ``EQUIVALENT``, which train like another config.
"""
NOT_RECORDED = {"optimizer", "rounds"}
"""The optimizer is described by its settings, and a resumed run may have another number of rounds."""
NO_FILES = "--trainer.runtime.default_callbacks=false"
SELDOM = ("--trainer.baselines=[]", "--trainer.evaluate_every=2")
"""Options for fewer evaluations. Zero-shot CLIP needs its baseline, and SWAD needs validation."""


def check_config(config, chosen, image_root, folder, *options):
    """Check a run with two steps per client and round."""
    options = [*few_templates(config), "--trainer.local.epochs=1", "--trainer.local.steps=2", *options]
    parsed = make_run(image_root, folder, config, *options)

    def build(*more):
        # Parsed again if the parser passes the number of rounds to the method.
        is_linked = "rounds" in parsed.config.model.init_args
        run = make_run(image_root, folder, config, *options, *more) if is_linked else remake_run(parsed, *more)
        if NO_FILES in options:
            run.trainer.add_callback(Communication())
        return run

    reference = train_reference(build)
    model = reference.run.model
    arguments = set(constructor_arguments(type(model))) - NOT_RECORDED
    problems = [f"{name} is not recorded" for name in arguments - describe_model(model)["init_args"].keys()]
    for check in chosen:
        try:
            check(reference)
        except ContractError as error:
            problems.append(f"{check.__name__}: {error}")
    assert not problems


@pytest.mark.parametrize("config", each_config({*METHODS} - EQUIVALENT))
def test_every_method_satisfies_the_contract(config, image_root, tmp_path):
    seldom = SELDOM if config not in ("swad", "zero_shot") else ()
    check_config(config, checks.METHOD_CHECKS, image_root, tmp_path, *seldom)


@pytest.mark.parametrize("config", each_config({*METHODS} - KINDS, {*METHODS} - KINDS - EQUIVALENT))
def test_other_methods_pass_the_brief_checks(config, image_root, tmp_path):
    brief = [check for check in checks.METHOD_CHECKS if check not in TRAINING]
    check_config(config, brief, image_root, tmp_path, *SELDOM, NO_FILES)
