"""Runs that are made of a method's config as the command line makes them, small enough for tests."""

from __future__ import annotations

from pathlib import Path

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.utils.config_files import configs_folder


def make_run(image_root: Path, folder: Path, method: str, *arguments: str) -> FederationCLI:
    """Returns module, data and federation of a run on the tiny CLIP, not yet trained.

    Args:
        image_root: The folder of images.
        folder: Gets the cache and the run folder.
        method: The name of its config.
        arguments: More arguments of the command line, which win over those given here.
    """
    given = [
        f"--config={configs_folder() / 'methods' / method}.yaml",
        f"--config={configs_folder() / 'data' / 'folders'}.yaml",
        f"--data.root={image_root}",
        "--data.held_out=photo",
        "--data.batch_size=4",
        f"--data.cache_dir={folder / 'cache'}",
        "--model.clip.name=fedvlp-tiny",
        "--trainer.rounds=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder / 'runs'}",
        *arguments,
    ]
    return FederationCLI(run=False, args=given, save_config_callback=None)
