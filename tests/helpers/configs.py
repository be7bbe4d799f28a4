"""The names of the configs that tests go through. A new config is tested by being there."""

from __future__ import annotations

from fedvlp.utils.config_files import configs_folder

METHODS = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))
