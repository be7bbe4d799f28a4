"""Files that appear whole or not at all: a reader never sees half of one."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)


NODE = re.sub(r"\W", "_", platform.node())[:40]
"""This machine's name, as it stands in names of temporary files: other machines may see the same folder."""
TEMPORARY = re.compile(rf"\..*\.{NODE}-(\d+)-\d+\.tmp")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; what the block writes there takes the place of ``path`` at its end.

    If the block raises, ``path`` stays as it was and the temporary file is removed. Several processes may write the
    same file at once: the last one wins, and each reader sees one whole file.

    Args:
        path: the file to write, in a folder that exists.

    Raises:
        UserError: if there is something else of that name, such as a folder or a device.
        OSError: with ``path`` as its file, if the disk is full or refuses.
    """
    check_replaceable(path)
    temporary = temporary_beside(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, temporary, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Returns a path beside another that says which process on which machine it is of."""
    # Not of the same suffix: what a killed process leaves must not be taken for a file of that kind.
    return path.with_name(f".{path.name}.{NODE}-{os.getpid()}-{threading.get_ident()}.tmp")


def check_replaceable(path: Path) -> None:
    """Sees that a file can be written at a path.

    Raises:
        UserError: if there is something that is no file, such as a folder or a device.
    """
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device or pipe"
        raise UserError(f"Expected the name of a file to write; {path} is a {kind}. Name a file in a folder.")


def remove_dead_temporaries(folder: Path) -> int:
    """Removes the temporary files in a folder whose processes, on this machine, are dead; returns how many."""
    count = 0
    for path in folder.glob(".*.tmp"):
        match = TEMPORARY.fullmatch(path.name)
        if match and not _is_alive(int(match.group(1))):
            path.unlink(missing_ok=True)
            count += 1
    return count


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere the question below would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes in one step, into a folder that exists."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    r"""Writes text in UTF-8 in one step, with line ends as they are.

    Bytes of a file's name that are no UTF-8 come as lone surrogates, which UTF-8 has not: they are written as JSON has
    them, such as ``\udcff``.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_cache_file(path: Path, write: Callable[[Path], None]) -> None:
    """Lets ``write`` fill a file of a cache, in one step.

    A cache is a convenience, so a disk that refuses (full, read-only) costs a logged warning and not the run.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            write(temporary)
    except (OSError, SafetensorError, UserError) as error:
        log.warning("Could not write the cache file %s (%s); going on without it.", path, error)
