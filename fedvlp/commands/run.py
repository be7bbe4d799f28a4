"""The commands that run a federation: ``fedvlp fit``, ``validate``, ``test``, ``predict`` and ``diagnose``."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.cli import SaveConfigCallback

from fedvlp.commands.console import quiet_lightning, unwrapped_errors
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import config_for_prediction, config_option
from fedvlp.utils.config_files import with_config_paths


def run_federation(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the command that is the first of them; bad arguments exit with code 2.

    Returns:
        The exit code.

    Raises:
        UserError: for bad input that only shows once the parts are made.
    """
    quiet_lightning()
    command = arguments[0]
    trained = config_for_prediction(arguments[1:]) if command == "predict" else None
    given = with_config_paths(arguments)
    if trained is not None:
        given.insert(1, config_option(trained))
    with unwrapped_errors():
        FederationCLI(
            save_config_callback=SaveConfigCallback if command == "fit" else None,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
            args=given,
        )
    return 0
