"""What Windows lacks is not needed to import the package; only what uses it says so."""

import builtins
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fedvlp
from fedvlp.sites.daemon import warm_folder
from fedvlp.utils.errors import UserError
from tests.helpers.forks import exit_code, fork

PACKAGE = Path(fedvlp.__file__).parent
FOREIGN = ("flwr", "wandb")
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
OF_OS = ("fork", "getuid", "killpg", "register_at_fork", "setsid")
OF_SIGNAL = ("SIGALRM", "SIGCHLD", "SIGKILL", "setitimer")


def test_every_module_can_be_imported(tmp_path):
    """In a copy of this process, which has imported what others have written already."""
    child = fork(import_all, output=tmp_path / "output.txt")
    assert exit_code(child) == 0, (tmp_path / "output.txt").read_text()


def import_all() -> None:
    """Imports all of the package anew, as if this were Windows."""
    for name in FOREIGN:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    sys.meta_path[:] = [finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__]
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedvlp"]:
        del sys.modules[name]
    for name in OF_OS:
        delattr(os, name)
    for name in OF_SIGNAL:
        delattr(signal, name)
    del socket.AF_UNIX
    found = builtins.__import__

    def imported(name: str, globals: Any = None, *others: Any) -> Any:
        if name in MODULES and str((globals or {}).get("__name__")).startswith("fedvlp"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found(name, globals, *others)

    builtins.__import__ = imported
    sys.argv[1:] = ["--help"]
    for path in sorted(PACKAGE.rglob("*.py")):
        import_file(path)


def import_file(path: Path) -> None:
    """Imports one module, unless it is of an extra that is not there."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    try:
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except SystemExit:  # of __main__, whose command is the help
        assert path.name == "__main__.py"
    except ModuleNotFoundError as error:
        if error.name not in FOREIGN:
            raise


def test_a_site_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(UserError, match="only Linux and macOS have"):
        warm_folder(tmp_path)
