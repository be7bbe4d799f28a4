"""Which classes a file may name: fedvlp's own, PyTorch's optimizers, those of installed plug-ins and those allowed.

To import a module runs its code. Who installs a plug-in has decided to run its code, so the classes that it registers
are trusted; nothing else in its package is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import fedvlp
from fedvlp.runs.plugin_classes import is_plugin_class
from fedvlp.utils.errors import UserError

NEVER_IMPORTED = ("class_names", "domains", "source_domains", "root", "cache_dir", "pretrained")
"""Options whose texts are names and paths, whatever they look like."""


def check_classes(where: Path, config: Any, allow: Sequence[str] = ()) -> None:
    """Looks through a config from a file for classes and modules that the parser would import.

    Args:
        where: the file, for the message.
        config: values that JSON or YAML can hold.
        allow: modules and paths of classes that may be imported; a module allows all that is in it.

    Raises:
        UserError: if it names one that is neither fedvlp's own, nor an optimizer of PyTorch's, nor a plug-in's, nor
            allowed; says what to pass.
    """
    for path in _importable(config):
        is_allowed = path in allow or any(path.startswith(f"{module}.") for module in allow)
        if not (is_allowed or is_own_class(path) or is_optimizer(path) or is_plugin_class(path)):
            raise UserError(
                f"{where} asks for code that is not fedvlp's own: {path!r}. To import it runs it. If you "
                f"trust it, install the package that registers it, or pass --allow {path}"
            )


def is_own_class(path: str) -> bool:
    """Whether a text is one of fedvlp's public classes: its short name, or the path under which files know it.

    Nothing but that one class is imported.
    """
    name = path.rpartition(".")[2]
    if not name[:1].isupper() or name not in fedvlp.__all__:
        return False
    if path in (name, f"fedvlp.{name}"):
        return True
    found = getattr(fedvlp, name) if path.startswith("fedvlp.") else None
    return isinstance(found, type) and path == f"{found.__module__}.{found.__qualname__}"


def is_optimizer(path: str) -> bool:
    """Whether a text is the path of a class in ``torch.optim``, which fedvlp has imported already."""
    module, _, name = path.rpartition(".")
    return module == "torch.optim" and name[:1].isupper()


def _importable(value: Any, key: str = "") -> Iterator[str]:
    """Yields every text that the parser might import, or read as a config's path, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _importable(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _importable(inner, key)
    elif isinstance(value, str) and key == "class_path":
        yield value
    elif isinstance(value, str) and key not in NEVER_IMPORTED:
        yield from _importable_in_text(value)


def _importable_in_text(text: str) -> Iterator[str]:
    """Yields what the parser might import of a text, which it reads as YAML where that gives more than a text."""
    try:
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, (dict, list)):
        yield from _importable(parsed)
    elif _is_importable(text) or _is_file(text):
        yield text


def _is_importable(text: str) -> bool:
    """Whether a text is the dotted path of something in a module that is there; nothing is imported to see that."""
    first, *others = text.split(".")
    if not others or not all(part.isidentifier() for part in (first, *others)):
        return False
    return first in sys.modules or find_spec(first) is not None


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long for a name, or of somebody without a home
        return False
