"""Makes a test fail that writes anything outside its temporary folders.

Importing this module gives the process, and all processes it starts, an empty home folder. Import it before packages
that look for their folders when they are imported. Then register a `Guard` with pytest.
"""

import atexit
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Variables that say where packages keep their files; without them all of these lie in the home folder.
FOLDER_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "TORCH_HOME")
FOLDER_PREFIXES = ("XDG_", "WANDB_")

# Audit events of calls that write, and which of their arguments is the path that is written.
WRITTEN_ARGUMENT = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
DEVICES = ("/dev", "/proc")
MOST_NAMED = 10


def _temporary_home() -> Path:
    """Puts an empty home folder in the environment until the process ends."""
    os.environ["PYTHONUSERBASE"] = site.getuserbase()  # packages may be installed there
    for name in list(os.environ):
        if name in FOLDER_VARIABLES or name.startswith(FOLDER_PREFIXES):
            del os.environ[name]
    made = tempfile.mkdtemp(prefix="fedvlp-tests-")
    process = os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == process else None)
    home = Path(made, "home")
    home.mkdir()
    os.environ["HOME"] = str(home)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["MPLCONFIGDIR"] = str(Path(made, "matplotlib"))  # where it writes a list of fonts if there is none
    return home


HOME = _temporary_home()


class Guard:
    """A plugin of pytest that watches where tests write.

    What this process opens for writing, makes, moves or links is seen wherever it lies. What other processes and
    compiled code write is seen if it lies in the home folder or is a new name in the repository's root.

    Args:
        root: The repository's root.
        config: What pytest is run with.
    """

    def __init__(self, root: Path, config: pytest.Config) -> None:
        self._root = os.path.realpath(root)
        self._home = os.path.realpath(HOME)
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._given = _given_folder(config)
        self._names = set(os.listdir(self._root))
        self._written: list[str] = []
        self._watching = False
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def _watched(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fails after a phase of a test if something was written outside; if the phase fails itself, after the next."""
        self._watching = True
        try:
            result = yield
        finally:
            self._watching = False
        if found := self._found():
            lines = [f"  {path.replace(self._home, '~')}" for path in found[:MOST_NAMED]]
            lines += [f"  and {len(found) - MOST_NAMED} more"] * (len(found) > MOST_NAMED)
            pytest.fail("\n".join([f"{item.nodeid} wrote outside its temporary folders:", *lines]), pytrace=False)
        return result

    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _watched

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Notes a path that is written outside."""
        if not self._watching or event not in WRITTEN_ARGUMENT:
            return
        if event == "open" and not arguments[2] & WRITING:
            return
        path = arguments[WRITTEN_ARGUMENT[event]]
        if isinstance(path, int):
            return
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        path = os.path.join(os.path.realpath(folder), name)
        if self._is_outside(path) and not (event == "os.mkdir" and os.path.isdir(path)):
            self._written.append(path)

    def _is_outside(self, path: str) -> bool:
        """Tells whether a path lies outside temporary folders. The root and the home may lie in a temporary folder."""
        if "__pycache__" in path or _lies_in(path, *DEVICES, *self._given):
            return False
        return _lies_in(path, self._root, self._home) or not _lies_in(path, self._temporary)

    def _found(self) -> list[str]:
        """Returns what was written outside since the last call, and empties the home folder."""
        found = self._written
        self._written = []
        for name in os.listdir(self._home):
            path = Path(self._home, name)
            found += [str(path), *map(str, path.rglob("*"))]
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        names = {name for name in os.listdir(self._root) if not name.startswith((".", "__pycache__"))}
        found += [os.path.join(self._root, name) for name in names - self._names]
        self._names |= names
        return sorted(set(found))


def _given_folder(config: pytest.Config) -> list[str]:
    """Returns the folder for temporary folders that pytest was given, if it was given one."""
    given = config.getoption("basetemp")
    if given is None:
        return []
    folder = Path(given).resolve()
    return [str(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)]


def _lies_in(path: str, *folders: str) -> bool:
    """Tells whether a path is one of some folders or lies in one."""
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
