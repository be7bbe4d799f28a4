"""Check of the classes in a file: trusted are fedvlp's own, PyTorch's optimizers, plug-ins and allowed classes.

Importing a module runs its code. A user who installs a plug-in has decided to run its code, so the classes that it
registers are trusted, but nothing else in its package.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import fedvlp
from fedvlp.utils.config_files import parse_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import checked_values
from fedvlp.utils.plugins import is_plugin_class

OPTIMIZER = re.compile(r"torch\.optim\.[A-Z]\w*")
NEVER_IMPORTED = (
    *("class_names", "positive_class", "domains", "held_out", "source_domains"),
    *("root", "table", "cache_dir", "pretrained"),
)
"""Options with strings that are always names or paths, even if they look like classes."""


def check_classes(where: Path, config: Any, allow: Sequence[str] = ()) -> None:
    """Raise UserError if a config from a file names an untrusted class, or exceeds the limits of a config.

    Args:
        where: The file, for the message.
        config: Values from JSON or YAML.
        allow: Modules and class paths that may be imported; a module allows all its contents.
    """
    try:
        checked_values(config)
        paths = list(_importable(config))
    except UserError as error:
        raise UserError(f"{where} cannot be used: {error} Pass a file written by a run.") from error
    for path in paths:
        is_allowed = path in allow or any(path.startswith(f"{module}.") for module in allow)
        if not (is_allowed or is_own_class(path) or OPTIMIZER.fullmatch(path) or is_plugin_class(path)):
            raise UserError(
                f"{where} needs code that is not part of fedvlp: {path!r:.200}. Importing it runs it. If you trust it, "
                f"install the package that registers it, or pass --allow {path:.200}"
            )


def is_own_class(path: str) -> bool:
    """Check whether a string names a public class of fedvlp: its short name, or its full path."""
    name = path.rpartition(".")[2]
    if not name[:1].isupper() or name not in fedvlp.__all__:
        return False
    if path in (name, f"fedvlp.{name}"):
        return True
    # The path must be the defining module, because any module may import a class of fedvlp.
    kind = getattr(fedvlp, name) if path.startswith("fedvlp.") else None
    return isinstance(kind, type) and path == f"{kind.__module__}.{kind.__qualname__}"


def _importable(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _importable(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _importable(inner, key)
    elif isinstance(value, str):
        # Parse before checking the key, so that forbidden YAML is rejected everywhere.
        parsed = _parsed(value)
        if key in NEVER_IMPORTED:
            return
        # The parser can read the options of a group, such as trainer.local, from a file.
        is_config = os.path.isfile(os.path.expanduser(value))
        if key == "class_path" or _is_dotted_path(value) or is_config:
            yield value
        elif isinstance(parsed, (dict, list)):
            yield from _importable(parsed)


def _parsed(text: str) -> Any:
    """Parse a string like the parser, which treats it as YAML if the option may be a class."""
    try:
        return parse_yaml(text)
    except UserError:
        raise
    except (yaml.YAMLError, ValueError):
        return text


def _is_dotted_path(value: str) -> bool:
    first, *others = value.split(".")
    if not others or not all(part.isidentifier() for part in (first, *others)):
        return False
    # Search for the module without importing it.
    return first in sys.modules or find_spec(first) is not None
