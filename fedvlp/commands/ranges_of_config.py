"""Holds a parsed configuration to the ranges of its options, before anything is made of it, and shows them in help."""

from __future__ import annotations

from argparse import Action
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from jsonargparse import Namespace

from fedvlp.federation import Federation
from fedvlp.utils.checked import annotations_of, check_value, constraints_of
from fedvlp.utils.config_files import CONFIG_OPTION
from fedvlp.utils.errors import UserError
from fedvlp.utils.yaml_limits import load_yaml, read_yaml


def check_config(config: Namespace) -> None:
    """Checks all options that have a range, at any depth.

    Raises:
        UserError: for the first value that is out of it, with the option's whole name.
    """
    if isinstance(config.get("seed_everything"), bool) and config["seed_everything"]:
        raise UserError("Expected seed_everything of at least 0, or false for 0, got true. Give the seed itself.")
    _check_options(Federation, config.get("trainer") or {}, "trainer")
    for key in ("model", "data"):
        _check(config.get(key), key)


def check_rounds(config: Namespace, arguments: Sequence[str]) -> None:
    """Checks that nobody asks for other rounds of a method than the federation runs, which it would get.

    Raises:
        UserError: if somebody does.
    """
    rounds = config.trainer.get("rounds")
    for given in _rounds_of_model(arguments):
        if given != rounds:
            raise UserError(
                f"Expected model.rounds to be left out, since it is trainer.rounds ({rounds}), got {given}. "
                "Give --trainer.rounds."
            )


def add_ranges(actions: Sequence[Action], kind: type, key: str | None) -> None:
    """Adds to the help of a class's options what ranges they have.

    Args:
        actions: the parser's.
        kind: the class.
        key: what stands before its options' names.
    """
    hints = annotations_of(kind)
    by_name = {action.dest: action for action in actions}
    for name, hint in hints.items():
        if is_dataclass(hint):
            add_ranges(actions, cast(type, hint), f"{key}.{name}" if key else name)
        action = by_name.get(f"{key}.{name}" if key else name)
        texts = [constraint.text for constraint in constraints_of(hint) if constraint.text]
        if action is None or not texts:
            continue
        start = "required, " if action.required else ""
        end = "" if action.required else ", default: %(default)s"
        action.help = f"{action.help or ''} ({start}type: %(type)s {' and '.join(texts)}{end})".lstrip()


def _check(value: Any, key: str) -> None:
    """Checks what makes an object, and lists and mappings of such."""
    if isinstance(value, (Namespace, Mapping)):
        kind = _class_at(value.get("class_path"))
        options = value.get("init_args") or {}
        if kind is not None:
            _check_options(kind, options, key)
    elif isinstance(value, list):
        for item in value:
            _check(item, key)


def _check_options(kind: type, options: Any, key: str) -> None:
    hints = annotations_of(kind)
    for name, value in dict(vars(options) if isinstance(options, Namespace) else options).items():
        hint = hints.get(name)
        # What comes from the data is not known yet, and the parser has looked at types.
        if value is not None and (hint is float or constraints_of(hint)):
            check_value(f"{key}.{name}", hint, value)
        if is_dataclass(hint) and isinstance(value, Namespace):
            _check_options(cast(type, hint), value, f"{key}.{name}")
        else:
            _check(value, f"{key}.{name}")


def _class_at(path: Any) -> type | None:
    """Returns the class of a path; None for a function, or for what the parser has yet to refuse."""
    if not isinstance(path, str) or "." not in path:
        return None
    module, name = path.rsplit(".", 1)
    found = getattr(import_module(module), name, None)
    return found if isinstance(found, type) else None


def _rounds_of_model(arguments: Sequence[str]) -> list[Any]:
    """Returns what arguments and configs give as the method's own number of rounds."""
    found: list[Any] = []
    for name in ("--model.rounds", "--model.init_args.rounds"):
        for place, argument in enumerate(arguments):
            if argument.startswith(f"{name}="):
                found.append(load_yaml(argument.partition("=")[2]))
            elif argument == name:
                found.append(load_yaml(arguments[place + 1]))
    for argument in arguments:
        if argument.startswith(CONFIG_OPTION):
            found += _rounds_in(argument.removeprefix(CONFIG_OPTION))
    return found


def _rounds_in(config: str) -> list[Any]:
    content = load_yaml(config) if "\n" in config else read_yaml(Path(config))
    model = content.get("model") if isinstance(content, dict) else None
    options = model.get("init_args") if isinstance(model, dict) else None
    return [options["rounds"]] if isinstance(options, dict) and "rounds" in options else []
