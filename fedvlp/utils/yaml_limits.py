"""YAML that no person writes: refused before a parser spends all time and memory on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.errors import UserError

MOST_BYTES = 10_000_000
DEEPEST = 50
MOST_NODES = 100_000
"""How many values there may be once each alias stands for its whole anchor."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same as the safe loader, ten times as fast where PyYAML was built with libyaml, which crashes at deep nesting."""


def read_yaml(path: Path) -> Any:
    """Returns the content of a YAML file.

    Raises:
        UserError: if it can't be read, is no YAML, or is of a size that no config has.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is no config: it has more than {MOST_BYTES:,} bytes.")
        text = path.read_text(encoding="utf-8")
        return load_yaml(text, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}") from error


def load_yaml(text: str, where: str = "A value") -> Any:
    """Returns the content of YAML.

    Args:
        text: the YAML.
        where: how a message calls it.

    Raises:
        UserError: if it is of a size that no config has.
        yaml.YAMLError: if it is no YAML.
    """
    check_yaml(text, where)
    return yaml.load(text, Loader=_LOADER)


def check_yaml(text: str, where: str) -> None:
    """Checks how deep values are nested, and how many there are once aliases are followed.

    Args:
        text: YAML; of what is none nothing is said here.
        where: how a message calls it.

    Raises:
        UserError: if there are too many.
    """
    try:
        _count(text, where)
    except yaml.YAMLError:
        return


def _count(text: str, where: str) -> None:
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and how many values there were before it
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes |= {} if anchor is None else {anchor: count - before}
        elif isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
        if len(open_nodes) > DEEPEST:
            raise UserError(f"{where} is nested more than {DEEPEST} levels deep, which no config is.")
        if count > MOST_NODES:
            raise UserError(f"{where} stands for more than {MOST_NODES:,} values, which no config does.")
