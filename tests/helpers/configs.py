"""The names of the configs that tests go through. A new config is tested by being there."""

from __future__ import annotations

from fedvlp.utils.config_files import configs_folder

METHODS = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))


def few_templates(name: str) -> list[str]:
    """Returns the option of two templates for a config with more, whose features take longer than its training."""
    config = (configs_folder() / "methods" / f"{name}.yaml").read_text(encoding="utf-8")
    return ["--model.templates=2"] if " templates: " in config else []
