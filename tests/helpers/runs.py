"""Runs that are made of a method's config as the command line makes them, small enough for tests."""

from __future__ import annotations

from pathlib import Path

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.testing.runs import small_run
from fedvlp.utils.config_files import configs_folder


def make_run(image_root: Path, folder: Path, method: str, *arguments: str) -> FederationCLI:
    """Returns module, data and federation of a run on the tiny CLIP, not yet trained.

    Args:
        image_root: The folder of images.
        folder: Gets the cache and the run folder.
        method: The name of its config.
        arguments: More arguments of the command line, which win over those given here.
    """
    return small_run(image_root, folder, [f"--config={configs_folder() / 'methods' / method}.yaml"], *arguments)
