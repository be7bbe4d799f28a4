"""Small runs from a method's config, created like on the command line."""

from copy import copy
from pathlib import Path

import yaml

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.testing.runs import small_run
from fedvlp.utils.config_files import configs_folder
from tests.helpers.configs import supports_one_label


def short_fit(image_root: Path, folder: Path) -> list[str]:
    """List the arguments of a short ``fedvlp fit``, except the method, that writes its files to a folder."""
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
    """Create the module, data and federation of an untrained run on the tiny CLIP.

    Args:
        image_root: Folder of images; a method that needs several labels trains on scenes.
        folder: Folder for the cache and the run folder.
        method: Name of the method's config.
        arguments: More command-line arguments, which override the defaults.
    """
    config = f"--config={configs_folder() / 'methods' / method}.yaml"
    return small_run(image_root if supports_one_label(method) else None, folder, [config], *arguments)


def remake_run(run: FederationCLI, *arguments: str) -> FederationCLI:
    """Create a run again with other numbers, names or switches. Parsing all arguments again takes longer than a round.

    Args:
        run: The run to create again; unchanged.
        arguments: Arguments such as ``--trainer.rounds=3``.
    """
    again = copy(run)
    again.config = run.config.clone()
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        again.config[name] = yaml.safe_load(value)
    again.config.trainer.seed = again.config.seed_everything
    again._set_seed()
    again.instantiate_classes()
    return again
