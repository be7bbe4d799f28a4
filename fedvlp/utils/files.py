"""Files that appear whole or not at all: a reader never sees half of one."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

log = logging.getLogger(__name__)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; what the block writes there takes the place of ``path`` at its end.

    If the block raises, ``path`` stays as it was and the temporary file is removed. Several processes may write the
    same file at once: the last one wins, and each reader sees one whole file.

    Args:
        path: the file to write, in a folder that exists.
    """
    # Not of the same suffix: what a killed process leaves must not be taken for a file of that kind.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes in one step, into a folder that exists."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8 in one step, with line ends as they are."""
    write_bytes(path, text.encode())


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
    except (OSError, SafetensorError) as error:
        log.warning("Could not write the cache file %s (%s); going on without it.", path, error)
