"""Which classes a file may name: fedvlp's own, PyTorch's optimizers, those of installed plug-ins and those allowed.

Importing a module runs its code. Who installs a plug-in has decided to run its code, so the classes that it registers
are trusted; nothing else in its package is.
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
NEVER_IMPORTED = ("class_names", "domains", "held_out", "source_domains", "root", "cache_dir", "pretrained")
"""Options whose strings are names and paths, whatever they look like."""


def check_classes(where: Path, config: Any, allow: Sequence[str] = ()) -> None:
    """Raise UserError if a config from a file names a class that is not trusted, or exceeds the bounds of a config.

    Args:
        where: the file, for the message.
        config: values that JSON or YAML can hold.
        allow: modules and paths of classes that may be imported; a module allows all that is in it.
    """
    try:
        checked_values(config)
        paths = list(_importable(config))
    except UserError as error:
        raise UserError(f"{where} can't be used: {error} Pass a file that a run wrote.") from error
    for path in paths:
        is_allowed = path in allow or any(path.startswith(f"{module}.") for module in allow)
        if not (is_allowed or is_own_class(path) or OPTIMIZER.fullmatch(path) or is_plugin_class(path)):
            raise UserError(
                f"{where} asks for code that is not fedvlp's own: {path!r:.200}. To import it runs it. If you trust "
                f"it, install the package that registers it, or pass --allow {path:.200}"
            )


def is_own_class(path: str) -> bool:
    """Whether a string is one of fedvlp's public classes: its short name, or the path under which files know it."""
    name = path.rpartition(".")[2]
    if not name[:1].isupper() or name not in fedvlp.__all__:
        return False
    if path in (name, f"fedvlp.{name}"):
        return True
    # The path must be where the class is defined: any module may have imported one of our names.
    kind = getattr(fedvlp, name) if path.startswith("fedvlp.") else None
    return isinstance(kind, type) and path == f"{kind.__module__}.{kind.__qualname__}"


def _importable(value: Any, key: str = "") -> Iterator[str]:
    """Yield every string that the parser might import, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _importable(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _importable(inner, key)
    elif isinstance(value, str):
        # Before the key is asked: what YAML must not hold is refused everywhere.
        parsed = _parsed(value)
        if key in NEVER_IMPORTED:
            return
        # The options of a group, such as trainer.local, may be read from a file.
        is_config = os.path.isfile(os.path.expanduser(value))
        if key == "class_path" or _is_dotted_path(value) or is_config:
            yield value
        elif isinstance(parsed, (dict, list)):
            yield from _importable(parsed)


def _parsed(text: str) -> Any:
    """Return what the parser reads in a string, which it takes for YAML where an option may be a class."""
    try:
        return parse_yaml(text)
    except UserError:
        raise
    except (yaml.YAMLError, ValueError):
        return text


def _is_dotted_path(value: str) -> bool:
    """Whether a string is the dotted path of something in a module that exists."""
    first, *others = value.split(".")
    if not others or not all(part.isidentifier() for part in (first, *others)):
        return False
    # The module is looked for, but not imported.
    return first in sys.modules or find_spec(first) is not None
