"""The command line's parser: LightningCLI's, with errors that say one thing."""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.hidden_contents import hide_contents
from fedvlp.commands.parser_messages import condense
from fedvlp.commands.ranges_of_config import add_ranges
from fedvlp.runs.plugin_classes import plugin_names
from fedvlp.utils.errors import UserError
from fedvlp.utils.signatures import constructor_arguments
from fedvlp.utils.suggestions import did_you_mean
from fedvlp.utils.visible import visible_message

# jsonargparse says only in words which name it does not know, so the words are what is looked at. Where a new version
# words them differently, the message still comes out, without a hint.
UNKNOWN_OPTION = re.compile(r"class_path '([\w.]+)':\s+Option '(\w+)' is not accepted")
UNKNOWN_TRAINER_OPTION = re.compile(
    r"(?:arguments: --trainer\.|not accept option 'trainer\.|Group 'trainer[\w.]*' does not accept option ')([\w.]+)"
)
UNEXPECTED_CONFIG = re.compile(r"Unexpected config: .*", re.DOTALL)
UNKNOWN_CLASS = re.compile(r"dot import path string: (\w+)")
UNKNOWN_MODULE = re.compile(r"No module named '(\w+)'")
NOTHING_TO_MEASURE = re.compile(r"arguments are required: (test|validate)\.data, \1\.model")


class FederationParser(LightningArgumentParser):
    """Parses as LightningCLI does; takes no abbreviated options, and explains unknown ones with the nearest name.

    Args:
        *arguments: those of LightningArgumentParser.
        known_trainer_options: names of the options below ``trainer``.
        known_classes: short names of classes.
        instead: what to use in place of options that only Lightning's trainer has, by their names.
        **options: those of LightningArgumentParser.

    Attributes:
        shown: the names of the options that the help shows; None for all.
    """

    def __init__(
        self,
        *arguments: Any,
        known_trainer_options: Sequence[str] = (),
        known_classes: Sequence[str] = (),
        instead: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self.arguments: Sequence[str] = ()
        self.known_trainer_options = known_trainer_options
        self.known_classes = known_classes
        self.instead = dict(instead or {})
        self.shown: Sequence[str] | None = None

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *given: Any, **options: Any) -> Any:
        """Adds a class's options, with their ranges in the help."""
        names = super().add_class_arguments(theclass, nested_key, *given, **options)
        add_ranges(self._actions, theclass, nested_key)
        return names

    def format_help(self) -> str:
        """Returns the help, of the options in ``shown`` alone where that is given, without groups of which none is."""
        if self.shown is None:
            return str(super().format_help())
        actions = chain.from_iterable(group._group_actions for group in self._action_groups)
        hidden = [each for each in actions if each.dest not in self.shown]
        holds = set(hidden).issuperset
        empty = [group for group in self._action_groups if holds(group._group_actions)]
        texts = [action.help for action in hidden]
        titles = [(group.title, group.description) for group in empty]
        try:
            for action in hidden:
                action.help = SUPPRESS
            for group in empty:
                group.title = None
                group.description = None
            return str(super().format_help())
        finally:  # the parser itself looks at them, too
            for action, text in zip(hidden, texts, strict=True):
                action.help = text
            for group, (title, description) in zip(empty, titles, strict=True):
                group.title = title
                group.description = description

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Any:
        """Parses, and refuses what jsonargparse fails at: whole numbers beyond floats, and NUL in a path."""
        try:
            return super().parse_args(args, *others, **options)
        except UserError:
            raise
        except (OverflowError, ValueError) as error:
            self.error(f"{_odd_option(args or self.arguments)}: {error}")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Writes what is wrong, without usage and without the parser's own details, and exits with code 2."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one will say it
            super().error(message, ex)
        command = (getattr(ex, "subcommand_parser", None) or self).prog.replace(" [options]", "")
        shown = hide_contents(self.explain(message), self.arguments)
        sys.stderr.write(f"{command}: error: {visible_message(shown)}\n")
        sys.stderr.write(
            f"`{command} --help` lists all options, --model.help NAME and --data.help NAME those of a class.\n"
        )
        sys.exit(2)

    def explain(self, message: str) -> str:
        """Returns what a message of the parser's says, with the name that was probably meant."""
        told = condense(UNEXPECTED_CONFIG.sub("Expected a config with keys such as model, data and trainer", message))
        return told if "got " in told else told + self._hint(message)

    def _hint(self, message: str) -> str:
        """Returns the nearest known name in a sentence, or all of them; nothing where no name is unknown."""
        if unknown := UNKNOWN_OPTION.search(message):
            return _nearest(unknown.group(2), constructor_arguments(_class_at(unknown.group(1))))
        if unknown := UNKNOWN_TRAINER_OPTION.search(message):
            return self._hint_of_trainer(unknown.group(1))
        if unknown := UNKNOWN_CLASS.search(message):
            near = did_you_mean(unknown.group(1), [*self.known_classes, *plugin_names()])
            return f". {near}" if near else ""
        if (unknown := UNKNOWN_MODULE.search(message)) and Path(f"{unknown.group(1)}.py").exists():
            return f". {unknown.group(1)}.py is in this folder: put PYTHONPATH=. before the command."
        if missing := NOTHING_TO_MEASURE.search(message):
            command = missing.group(1)
            return f". To measure a trained run: fedvlp {command} --ckpt_path RUN"
        return ""

    def _hint_of_trainer(self, name: str) -> str:
        """Returns what is meant by an option that the federation does not have."""
        return f": {self.instead[name]}." if name in self.instead else _nearest(name, self.known_trainer_options)


def _odd_option(arguments: Sequence[str]) -> str:
    """Returns the option whose value holds NUL, or else is longest, as of a number of hundreds of digits.

    >>> _odd_option(["--seed_everything=1", "--trainer.clients.stragglers", "1000", "--model=TRIP"])
    '--trainer.clients.stragglers'
    >>> _odd_option(["--seed_everything=1000"])
    '--seed_everything'
    """
    parts = ["", *chain.from_iterable(word.split("=", 1) for word in arguments)]
    values = [part for name, part in pairwise(parts) if name.startswith("--")]
    if not values:
        return "an option"
    odd = max(values, key=lambda value: ("\0" in value, len(value)))
    return parts[parts.index(odd) - 1]


def _nearest(name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known)
    return f". {near}" if near else f". Known: {', '.join(known)}."


def _class_at(path: str) -> type:
    module, name = path.rsplit(".", 1)
    found: type = getattr(import_module(module), name)
    return found
