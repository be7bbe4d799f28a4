"""The command line's parser: LightningCLI's, which says what to use in place of options of Lightning's trainer."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.utils.errors import escape_control_chars


class FederationParser(LightningArgumentParser):
    """LightningCLI's parser.

    Args:
        *arguments: those of LightningArgumentParser.
        replacements: what to use in place of options that only Lightning's trainer has, by their names.
        **options: those of LightningArgumentParser.

    Attributes:
        shown: the names of the options that the help shows; empty for all.
    """

    def __init__(self, *arguments: Any, replacements: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self.replacements = dict(replacements or {})
        self.shown: Sequence[str] = ()

    def format_help(self) -> str:
        """Formats the help, of the options in ``shown`` alone where there are any."""
        for group in self._action_groups if self.shown else ():
            hidden = [action for action in group._group_actions if action.dest not in self.shown]
            for action in hidden:
                action.help = SUPPRESS
            if len(hidden) == len(group._group_actions):
                group.title = None
                group.description = None
        return str(super().format_help())

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends with the parser's message, without its usage, which would be a page long."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one reports it
            super().error(message, ex)
        for name, replacement in self.replacements.items():
            if f"trainer.{name}" in message or f"option '{name}'" in message:
                message += f"\n{name}: {replacement}."
        command = (getattr(ex, "subcommand_parser", None) or self).prog.replace(" [options]", "")
        sys.stderr.write(f"{command}: error: {escape_control_chars(message)}\n")
        sys.stderr.write(f"`{command} --help` lists all options, --model.help NAME those of a class.\n")
        sys.exit(2)


def with_plain_numbers(value: Any) -> Any:
    """Makes plain ints and floats of a config's restricted ones.

    Their classes are the parser's own, which neither YAML's safe dumper nor ``torch.compile`` knows.
    """
    if isinstance(value, Namespace):
        return Namespace(**{name: with_plain_numbers(inner) for name, inner in vars(value).items()})
    if isinstance(value, dict):
        return {name: with_plain_numbers(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_plain_numbers(inner) for inner in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value
