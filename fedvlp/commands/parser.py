"""The command line's parser: LightningCLI's, with errors that say one thing."""

from __future__ import annotations

import inspect
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

import fedvlp
from fedvlp.federation import Federation

NOISE = (
    "Does not validate",
    "- Does not validate",
    "Subtypes:",
    "Errors:",
    "- Expected a <class 'NoneType'>",
    "Given value",
)


class FederationParser(LightningArgumentParser):
    """Parses as LightningCLI does; takes no abbreviated options, and explains unknown ones with the nearest name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Writes what is wrong, without usage and without the parser's own details, and exits with code 2."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one will say it
            super().error(message, ex)
        command = (getattr(ex, "subcommand_parser", None) or self).prog.replace(" [options]", "")
        sys.stderr.write(f"{command}: error: {condense(message)}{nearest(message)}\n")
        sys.stderr.write(
            f"`{command} --help` lists all options, --model.help NAME and --data.help NAME those of a class.\n"
        )
        sys.exit(2)


def condense(message: str) -> str:
    r"""Leaves out what a parser says of its own types.

    >>> condense("Errors:\n    - Option 'x' is not accepted\n  Given value: x")
    "Option 'x' is not accepted"
    """
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith(NOISE)]
    return " ".join(line.removeprefix("- ") for line in lines)


def nearest(message: str) -> str:
    """Returns a hint at what was probably meant; nothing if nothing is near."""
    if unknown := re.search(r"class_path '([\w.]+)':\s+Option '(\w+)' is not accepted", message):
        return _hint(unknown.group(2), _parameters(_class(unknown.group(1))))
    if unknown := re.search(r"unrecognized arguments: --trainer\.(\w+)", message):
        return _hint(unknown.group(1), _parameters(Federation))
    if unknown := re.search(r"dot import path string: (\w+)", message):
        return _hint(unknown.group(1), fedvlp.__all__)
    return ""


def _hint(name: str, known: list[str]) -> str:
    """Returns the known name that is nearest, without regard to case, in a sentence; else all of them."""
    by_lower = {option.lower(): option for option in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f". Did you mean {by_lower[close[0]]!r}?" if close else f". Known: {', '.join(known)}."


def _class(path: str) -> type:
    """Returns the class at a dotted path."""
    module, _, name = path.rpartition(".")
    found: type = getattr(import_module(module), name)
    return found


def _parameters(kind: type) -> list[str]:
    """Returns the names of a class's arguments, those of its bases included."""
    names = [
        name
        for base in kind.__mro__
        if base.__module__.startswith("fedvlp") and "__init__" in vars(base)
        for name, parameter in inspect.signature(base).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    return list(dict.fromkeys(names))
