"""Errors without the content of files: the parser reads a value that is a file's path, and shows what it read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvlp.utils.visible import visible

MOST_BYTES = 100_000
SHORTEST_WORD = 4
WORD = re.compile(rf"[^\s:,'\"{{}}\[\]=]{{{SHORTEST_WORD},}}")
CONFIG_OPTIONS = ("--config", "-c", "--file", "--models")
MEANT_TO_BE_FILES = ("ckpt_path", "images", "output", "pretrained", "root", "default_root_dir", "")
"""Last words of the options whose value is a path and not read by the parser; errors about them are shown as they are.
"""
LISTS = ("--classes",)
"""Options whose value is a file of which errors speak; of a data set, ``--data.classes`` is a number."""


def hide_contents(message: str, arguments: Sequence[str]) -> str:
    """Returns a message, or another in its place if it shows a word of a file that an option's value names.

    Args:
        message: an error.
        arguments: the command line, whose configs are looked through for values that name files, too.
    """
    for option, path in _files_named(arguments):
        if option in LISTS or option.lstrip("-").rpartition(".")[2] in MEANT_TO_BE_FILES:
            continue
        words = set(WORD.findall(_start_of(path))) - set(WORD.findall(" ".join(arguments)))
        if any(word in message for word in words):
            return (
                f"{visible(option)}: the file {visible(path)} was read as its value and is none. Nothing of the file "
                "is shown here. Give the value itself."
            )
    return message


def _files_named(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields options and the files that are their values."""
    option = ""
    for argument in arguments:
        name, _, value = argument.partition("=")
        option = name if name.startswith("-") else option
        value = value if name.startswith("-") else argument
        if option in CONFIG_OPTIONS:
            yield from _files_in_config(value)
        elif _is_file(value):
            yield option, value


def _files_in_config(path: str) -> Iterator[tuple[str, str]]:
    import yaml  # only where something went wrong: `fedvlp --help` shall answer at once

    if not _is_file(path):  # a bundled config
        return
    try:
        content = yaml.safe_load(_start_of(path))
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    for key, value in _texts(content, "", set()):
        if _is_file(value):
            yield key, value


def _texts(value: Any, key: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yields each text with its key; what occurs several times, once."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (dict, list)) and id(value) not in seen:
        seen.add(id(value))
        inside = value.items() if isinstance(value, dict) else [(key, inner) for inner in value]
        for name, inner in inside:
            yield from _texts(inner, str(name), seen)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _start_of(path: str) -> str:
    """Returns the first part of a text file; empty if it can't be read or is none, as a checkpoint."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in content else content.decode("utf-8", "replace")
