"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there.

The checks are those of ``fedvlp.testing``, which methods of others are held to as well.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
import yaml

import fedvlp
from fedvlp.testing.method import METHOD_CHECKS
from fedvlp.testing.runs import WholeRun, whole_run
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.digests import constructor_arguments
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


OF_DASSL = {"coop", "promptfl", "single_domain", "cocoop", "kgcoop", "prograd", "fed_pgp", "fed_otp", "pfed_moap"}
OF_DASSL |= {"bpl", "fed_maple", "fed_pha", "fed_prompt_src", "ivlp", "plot", "proda", "prompt_folio"}
"""Configs of methods whose released code is built on Dassl, and of what is trained like them."""
OF_THEIR_OWN = {"promptfl_kl", "plan_released", "trip_released", "promptfl_released", "zero_shot", "zero_shot_ensemble"}
OF_THEIR_OWN |= {"fed3r", "fed_cof", "fed_gda", "fed_ncm"}
"""Configs with another optimizer than their class has, or none."""


@pytest.mark.parametrize("name", sorted({*METHODS} - OF_THEIR_OWN))
def test_a_class_has_the_optimizer_of_its_config(name):
    model = yaml.safe_load((configs_folder() / "methods" / f"{name}.yaml").read_text())["model"]
    default = constructor_arguments(getattr(fedvlp, model["class_path"]))["optimizer"].default
    optimizer = default([torch.nn.Parameter(torch.zeros(1))])
    settings = model["init_args"]["optimizer"]["init_args"]
    # The command line reads single numbers from a default, so FedCLIP's pair of betas is in its config alone.
    for option in settings.keys() - {"betas"}:
        assert optimizer.defaults[option] == settings[option]
    assert f"torch.optim.{type(optimizer).__name__}" == model["init_args"]["optimizer"]["class_path"]
    if name in OF_DASSL:
        assert (settings["momentum"], settings["weight_decay"]) == (0.9, 5e-4)
