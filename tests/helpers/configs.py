"""Names of the tested configs. Tests find new configs themselves."""

from collections.abc import Collection
from typing import Any

import pytest

import fedvlp
from fedvlp.utils.config_files import configs_folder, read_yaml
from fedvlp.utils.digests import constructor_arguments

METHODS = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))

KINDS = {"ccst", "diprompt", "fed_dpt", "fed_ncm", "fed_otp", "hcvp", "pfed_moap", "plan", "promptfl", "swad", "trip"}
KINDS |= {"zero_shot"}
"""Twelve configs that differ in phases, strategies, personal tensors or inputs. Slow tests run these by default."""
EQUIVALENT = {"trip_keys", "trip_random", "trip_released", "trip_lite", "fine_tuning_fedprox", "zero_shot_ensemble"}
EQUIVALENT |= {"coop", "plan_released", "promptfl_kl", "diprompt_labels"}
EQUIVALENT |= {"promptfl_released", "kgcoop_released", "fed_mvp_released"}
"""Configs that have the same tensors and compute the logits in the same way as another config."""


def each_config(names: Collection[str] = METHODS, default: Collection[str] = KINDS) -> list[Any]:
    """List configs as parameters; those that do not run by default run with ``pytest -m every_config``."""
    return [pytest.param(name, marks=[] if name in default else pytest.mark.every_config) for name in sorted(names)]


def method_classes() -> list[str]:
    """List the class paths of all method configs."""
    files = (configs_folder() / "methods").glob("*.yaml")
    return sorted({read_yaml(file)["model"]["class_path"] for file in files})


def supports_one_label(name: str) -> bool:
    """Whether a config's method can train on images with one label each."""
    model = read_yaml(configs_folder() / "methods" / f"{name}.yaml")["model"]
    return bool(getattr(fedvlp, model["class_path"]).supports_one_label)


def few_templates(name: str) -> list[str]:
    """Limit a config to two templates if it has more, because encoding them takes longer than training."""
    model = read_yaml(configs_folder() / "methods" / f"{name}.yaml")["model"]
    parameter = constructor_arguments(getattr(fedvlp, model["class_path"])).get("templates")
    templates = model.get("init_args", {}).get("templates", parameter.default if parameter else 0)
    return ["--model.templates=2"] if templates > 2 else []
