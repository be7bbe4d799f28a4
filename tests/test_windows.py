"""The package can be imported without the Unix features that Windows lacks; only their users raise."""

import builtins
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedvlp
from tests.helpers.forks import exit_code, forget_package, fork

PACKAGE = Path(fedvlp.__file__).parent
FOREIGN = ("flwr", "wandb")
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
OS_NAMES = ("fork", "getuid", "killpg", "register_at_fork", "setsid")
SIGNAL_NAMES = ("SIGALRM", "SIGCHLD", "SIGKILL", "setitimer")


def test_every_module_can_be_imported_on_windows(tmp_path):
    """The fork of this process has already imported third-party packages."""
    child = fork(import_all, output=tmp_path / "output.txt")
    assert exit_code(child) == 0, (tmp_path / "output.txt").read_text()


def import_all() -> None:
    """Import the whole package again, as if on Windows."""
    for name in FOREIGN:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    forget_package()
    for name in OS_NAMES:
        delattr(os, name)
    for name in SIGNAL_NAMES:
        delattr(signal, name)
    del socket.AF_UNIX
    original = builtins.__import__

    def imported(name: str, globals: Any = None, *others: Any) -> Any:
        if name in MODULES and str((globals or {}).get("__name__")).startswith("fedvlp"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, globals, *others)

    builtins.__import__ = imported
    sys.argv[1:] = ["--help"]
    for path in sorted(PACKAGE.rglob("*.py")):
        import_file(path)


def import_file(path: Path) -> None:
    """Import one module, unless it belongs to a missing extra."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    try:
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except SystemExit:  # __main__ prints the help and exits
        assert path.name == "__main__.py"
    except ModuleNotFoundError as error:
        if error.name not in FOREIGN:
            raise
