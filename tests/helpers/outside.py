"""Fail a test that writes anything outside its temporary folders.

Importing this module gives the process, and all processes it starts, an empty home folder. Import it before packages
that determine their folders during import. Then register a `Guard` with pytest.
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

# Variables that set where packages store their files. Without them, all files are stored in the home folder.
FOLDER_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "TORCH_HOME")
FOLDER_PREFIXES = ("XDG_", "WANDB_")

# Audit events of calls that write, and the index of the argument that is the written path.
WRITTEN_ARGUMENT = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
DEVICES = ("/dev", "/proc")
MOST_NAMED = 10


def _temporary_home() -> Path:
    """Put an empty home folder into the environment until the process ends."""
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
        os.environ["MPLCONFIGDIR"] = str(Path(made, "matplotlib"))  # matplotlib writes a missing list of fonts there
    return home


HOME = _temporary_home()


class Guard:
    """A pytest plugin that checks where tests write.

    It detects every path that this process opens for writing, creates, moves or links. It detects files of other
    processes and of compiled code only in the home folder, or as new names in the repository's root.

    Args:
        root: The repository's root.
        config: Configuration of pytest.
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
        """Fail after a phase of a test that wrote outside. If the phase itself fails, fail after the next."""
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
        """Record a path that is written outside."""
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
        """Check whether a path is outside temporary folders, or in the root or home, which may be temporary too."""
        if "__pycache__" in path or _is_inside(path, *DEVICES, *self._given):
            return False
        return _is_inside(path, self._root, self._home) or not _is_inside(path, self._temporary)

    def _found(self) -> list[str]:
        """List the paths written outside since the last call, and empty the home folder."""
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
    """List the folder that pytest's ``--basetemp`` sets for temporary folders, if any."""
    given = config.getoption("basetemp")
    if given is None:
        return []
    folder = Path(given).resolve()
    return [str(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)]


def _is_inside(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
