"""The names of the configs that tests go through. A new config is tested by being there."""

from __future__ import annotations

import fedvlp
from fedvlp.utils.config_files import configs_folder, read_yaml
from fedvlp.utils.digests import constructor_arguments

METHODS = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))


def method_classes() -> list[str]:
    """List the classes of the configs of methods."""
    files = (configs_folder() / "methods").glob("*.yaml")
    return sorted({read_yaml(file)["model"]["class_path"] for file in files})


def few_templates(name: str) -> list[str]:
    """Return the option of two templates for a config with more, whose features take longer than its training."""
    model = read_yaml(configs_folder() / "methods" / f"{name}.yaml")["model"]
    parameter = constructor_arguments(getattr(fedvlp, model["class_path"])).get("templates")
    templates = model.get("init_args", {}).get("templates", parameter.default if parameter else 0)
    return ["--model.templates=2"] if templates > 2 else []
