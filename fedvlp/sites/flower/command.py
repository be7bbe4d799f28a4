"""The command ``fedvlp deploy``: writes a Flower app that trains a config on real sites."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedvlp.utils.errors import UserError, unwrapped_errors

MISSING = 'Deployment needs Flower, which is not installed. With Python 3.11 or later run: pip install "fedvlp[flower]"'


def run_deploy(arguments: Sequence[str]) -> int:
    """Runs ``init``, says what was written, and returns the exit code.

    Raises:
        UserError: if Flower is missing, the config is not to be trained, or the folder is not empty.
    """
    given, of_config = _parser().parse_known_args(arguments)
    if find_spec("flwr") is None:
        raise UserError(MISSING)
    from fedvlp.sites.flower.app_files import write_app

    method, config = parsed_config(of_config)
    files = write_app(given.folder, method, config)
    sys.stdout.write("".join(f"{file}\n" for file in files))
    sys.stdout.write(f"Train it: flwr run {given.folder} SUPERLINK --stream\n")
    return 0


def parsed_config(arguments: Sequence[str]) -> tuple[str, str]:
    """Returns a method's name, and the config that ``fedvlp fit`` would train with these arguments, as YAML.

    Nothing is made of it and no image is looked for.

    Args:
        arguments: configs and dotted options.

    Raises:
        UserError: if no config is given.
    """
    from fedvlp.commands.lightning_cli import ParsingCLI
    from fedvlp.commands.run import quiet_lightning
    from fedvlp.utils.config_files import CONFIG_OPTION, with_config_paths

    quiet_lightning()
    given = with_config_paths(arguments)
    if not any(word.startswith(CONFIG_OPTION) for word in given):
        raise UserError("Expected what to train, such as --config methods/promptfl --config sites.yaml.")
    with unwrapped_errors():
        command = ParsingCLI(
            run=False, args=given, save_config_callback=None, parser_kwargs={"prog": "fedvlp deploy init DIR"}
        )
    text: str = command.parser.dump(command.config, skip_unset=False)
    return command.config.model.class_path.rpartition(".")[-1], text


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's own options; all others are those of ``fedvlp fit``."""
    parser = argparse.ArgumentParser("fedvlp deploy", description="Train on real sites with Flower.")
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser(
        "init",
        help="write a Flower app",
        description="Write a Flower app that trains a config. Takes --config and dotted options as `fedvlp fit` does.",
        allow_abbrev=False,
    )
    init.add_argument("folder", type=Path, metavar="DIR", help="the app's folder: new or empty")
    return parser
