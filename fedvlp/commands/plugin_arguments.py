"""The plug-ins that a command line names are imported before there is a parser, which then knows their short names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlp.runs.plugin_classes import import_all, import_named
from fedvlp.utils.config_files import CONFIG_OPTION
from fedvlp.utils.yaml_limits import load_yaml, read_yaml


def import_plugins(arguments: Sequence[str]) -> None:
    """Imports the classes of plug-ins that arguments and their configs name; for help, which lists them, all.

    Raises:
        UserError: if one that is named can't be used. With help that is only said on stderr.
    """
    if {"-h", "--help"} & set(arguments):
        for problem in import_all():
            sys.stderr.write(f"fedvlp: warning: {problem}\n")
        return
    for argument in arguments:
        import_named(_content(argument))


def _content(argument: str) -> Any:
    """Returns the values in an argument: of the config that it names, or its own."""
    value = argument.removeprefix(CONFIG_OPTION)
    if value == argument:
        value = argument.partition("=")[2] if argument.startswith("-") else argument
    elif "\n" not in value:
        return read_yaml(Path(value))
    try:
        return load_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError):  # the parser will say what is wrong
        return None
