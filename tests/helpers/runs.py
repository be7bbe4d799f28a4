"""Runs that are made of a method's config as the command line makes them, small enough for tests."""

from pathlib import Path

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.testing.runs import small_run
from fedvlp.utils.config_files import configs_folder


def short_fit(image_root: Path, folder: Path) -> list[str]:
    """Returns what ``fedvlp fit`` needs besides a method, of a short run that leaves its files in a folder."""
    return [
        "--config=folders",
        f"--data.root={image_root}",
        "--data.held_out=photo",
        f"--data.cache_dir={folder / 'cache'}",
        "--model.clip.name=fedvlp-tiny",
        "--trainer.rounds=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder / 'runs'}",
    ]


def make_run(image_root: Path, folder: Path, method: str, *arguments: str) -> FederationCLI:
    """Returns module, data and federation of a run on the tiny CLIP, not yet trained.

    Args:
        image_root: The folder of images.
        folder: Gets the cache and the run folder.
        method: The name of its config.
        arguments: More arguments of the command line, which win over those given here.
    """
    return small_run(image_root, folder, [f"--config={configs_folder() / 'methods' / method}.yaml"], *arguments)
