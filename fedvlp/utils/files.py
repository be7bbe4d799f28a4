"""Atomic writes, checked reads, locks that end with their process, and free disk space."""

import errno
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from fedvlp.utils.errors import UserError, escape_control_chars

log = logging.getLogger(__name__)

LARGEST = 1e15
MAX_LENGTH = 25_000  # of strings and lists; ImageNet-21k has fewer class names
MAX_ENTRIES = 100_000  # of objects, such as the accuracies of many clients
MAX_DEPTH = 30  # of nested lists and objects; configs of runs have ten
"""Limits of values in untrusted files. ``LARGEST`` is for numbers."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, and move the file that the block writes there to ``path`` at its end.

    If the block raises, ``path`` is unchanged and the temporary file is removed. Several processes may write the same
    file in an existing folder: the last one wins, and readers always see a complete file. An OSError names ``path`` as
    its file.
    """
    check_replaceable(path)
    # With another suffix, so that the leftovers of a killed process are not read as files of this kind.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
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


def check_replaceable(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise UserError if a path is a folder, a device or one of the input files."""
    if not path.exists():
        return
    if not path.is_file():
        kind = "folder" if path.is_dir() else "device or pipe"
        raise UserError(f"Expected the name of a file to write; {path} is a {kind}. Choose a file name.")
    if any(file.exists() and path.samefile(file) for file in inputs):
        raise UserError(f"Expected the name of a file to write; {path} is an input file. Choose another name.")


def remove_temporaries(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder. No other process may be writing to it."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes atomically, into an existing folder."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    r"""Write a string in UTF-8 atomically, with unchanged line ends.

    File names with bytes outside UTF-8 contain lone surrogates. They are written as in JSON, such as ``\udcff``.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file within the limits of :func:`checked_values`; raise UserError if it can't be read."""
    try:
        return checked_values(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read: {error}. Copy or write it again, or remove it.") from error


def checked_values(value: Any, depth: int = 0) -> Any:
    r"""Check a value from JSON or YAML, and escape control characters in its strings.

    Raises UserError for values that no run writes. Numbers must be finite and at most 1e15 (integers 63 bits). Strings
    and lists have at most 25,000 entries, objects 100,000, and there are at most 30 levels.

    >>> checked_values({"name": "photo \x1b[31m", "shots": [1, None]})
    {'name': 'photo \\x1b[31m', 'shots': [1, None]}
    """
    if depth > MAX_DEPTH:
        raise UserError(f"Expected lists and objects at most {MAX_DEPTH} levels deep.")
    most = MAX_ENTRIES if isinstance(value, Mapping) else MAX_LENGTH
    if isinstance(value, (str, list, tuple, Mapping)) and len(value) > most:
        raise UserError(f"Expected a {type(value).__name__} of at most {most:,} entries; got {len(value):,}.")
    if isinstance(value, Mapping):
        return {checked_values(name): checked_values(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked_values(inner, depth + 1) for inner in value]
    if isinstance(value, str):
        return value if value.isprintable() else escape_control_chars(value)
    # Seeds have up to 63 bits. The comparison also rejects NaN.
    largest = 2**63 if isinstance(value, int) else LARGEST
    if isinstance(value, (int, float)) and not abs(value) <= largest:
        raise UserError(f"Expected finite numbers up to {largest:g}.")
    return value


def check_inside(path: Path, folder: Path) -> None:
    """Raise UserError if a file in an untrusted folder is a link to a file outside it."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} is a link to a file outside {folder}. Replace the link by the file.")


def write_cache_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a cache file atomically with ``write``; only warn if the disk is full or read-only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            write(temporary)
    except (OSError, SafetensorError, UserError) as error:
        log.warning("Could not write the cache file %s (%s); continuing without it.", path, error)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock a file or folder for one process. The lock is a file next to it and ends with the process.

    With ``wait``, other processes wait, and continue without a lock if the disk rejects the lock file. Otherwise they
    get a BlockingIOError, or an OSError if the lock file can't be created.
    """
    lock = _make_lock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "Another process works on it", str(path)) from None
    except OSError:
        # Waiting only avoids duplicate work, so a process that would wait continues without a lock.
        if not wait:
            raise
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):  # Windows does not remove open files
                Path(lock.lock_file).unlink(missing_ok=True)  # before the release, after which others may lock it
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether this process or another holds the lock of a file or folder."""
    lock = _make_lock(path)
    # Without the file no process holds the lock. Acquiring it would leave a file behind.
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def free_bytes(path: Path) -> int:
    """Count the free bytes on the disk of a path, which need not exist."""
    existing = path.absolute()
    # A new file will be on the disk of its nearest existing parent.
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def size_in_words(count: int) -> str:
    """Format a number of bytes.

    >>> size_in_words(18_521_436_207), size_in_words(191_395_900), size_in_words(1_900)
    ('18.5 GB', '191 MB', '2 kB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _make_lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))
