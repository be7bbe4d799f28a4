"""The commands that run a federation: ``fedvlp fit``, ``validate``, ``test`` and ``predict``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import SaveConfigCallback

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import config_of_command, config_option
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import unwrapped_errors
from fedvlp.utils.files import write_text


def quiet_lightning() -> None:
    """Hides Lightning's messages about devices and seeds; its warnings stay."""
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class ConfigFile(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder, whole or not at all; Lightning's own writes it piece by piece."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Writes the file; called on one process."""
        write_text(Path(trainer.log_dir) / self.config_filename, self.parser.dump(self.config, skip_unset=False))


def run_federation(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the command that is the first of them; bad arguments exit with code 2.

    Returns:
        The exit code.

    Raises:
        UserError: for bad input that only shows once the parts are made.
    """
    quiet_lightning()
    command = arguments[0]
    trained = None if command == "fit" else config_of_command(command, arguments[1:])
    words = with_config_paths(arguments)
    if trained is not None:
        words.insert(1, config_option(trained))  # first, so that what the user gives overrides it
    with unwrapped_errors():
        FederationCLI(
            save_config_callback=ConfigFile if command == "fit" else None,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
            args=words,
        )
    return 0
