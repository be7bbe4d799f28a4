"""Files that appear whole or not at all, locks that end with their process, and room on a disk."""

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
MAX_LENGTH = 25_000  # of a string or a list: more class names than ImageNet-21k has
MAX_ENTRIES = 100_000  # of an object, such as the accuracies of many clients
MAX_DEPTH = 30  # of lists and objects in each other; configs of runs have ten
"""Bounds of what is read of a stranger's file, the first of its numbers."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; what the block writes there takes the place of ``path`` at its end.

    If the block raises, ``path`` is unchanged and the temporary file is removed. Several processes may write the same
    file, in a folder that exists: the last one wins, and each reader sees one whole file. An OSError has ``path`` as
    its file.
    """
    check_replaceable(path)
    # The suffix is not that of the file, so that what a killed process leaves is not read as one of its kind.
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
    """Raise UserError if a path can't be written: it is a folder or a device, or one of the files that are read."""
    if not path.exists():
        return
    if not path.is_file():
        kind = "folder" if path.is_dir() else "device or pipe"
        raise UserError(f"Expected the name of a file to write; {path} is a {kind}. Name a file in a folder.")
    if any(file.exists() and path.samefile(file) for file in inputs):
        raise UserError(f"Expected the name of a file to write; {path} is one that is read. Name another.")


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder, in which no other process may be writing."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes in one step, into a folder that exists."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    r"""Write a string in UTF-8 in one step, with line ends unchanged.

    Bytes of a file's name that are no UTF-8 come as lone surrogates, which UTF-8 has not: they are written as JSON has
    them, such as ``\udcff``.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file within the bounds of :func:`checked_values`; raise UserError if it can't be read."""
    try:
        return checked_values(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read: {error}. Copy or write it again, or remove it.") from error


def checked_values(value: Any, depth: int = 0) -> Any:
    r"""Return a value that was read from JSON or YAML, with what a terminal would act on escaped in its strings.

    Raises UserError for what no run writes: numbers beyond 1e15 (whole ones beyond 63 bits) or not finite, strings and
    lists longer than 25,000, objects of more than 100,000 entries, or values nested in more than 30 others.

    >>> checked_values({"name": "photo \x1b[31m", "shots": [1, None]})
    {'name': 'photo \\x1b[31m', 'shots': [1, None]}
    """
    if depth > MAX_DEPTH:
        raise UserError(f"Expected lists and objects at most {MAX_DEPTH} levels deep.")
    most = MAX_ENTRIES if isinstance(value, Mapping) else MAX_LENGTH
    if isinstance(value, (str, list, tuple, Mapping)) and len(value) > most:
        kind = type(value).__name__
        raise UserError(f"Expected a {kind} of at most {most:,} entries; found one of {len(value):,}.")
    if isinstance(value, Mapping):
        return {checked_values(name): checked_values(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked_values(inner, depth + 1) for inner in value]
    if isinstance(value, str):
        return value if value.isprintable() else escape_control_chars(value)
    # Seeds have up to 63 bits. Written so that NaN is refused as well.
    largest = 2**63 if isinstance(value, int) else LARGEST
    if isinstance(value, (int, float)) and not abs(value) <= largest:
        raise UserError(f"Expected finite numbers up to {largest:g}.")
    return value


def check_inside(path: Path, folder: Path) -> None:
    """Raise UserError if a file in a stranger's folder is a link to one elsewhere, which must not be shown."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} is a link out of {folder}, so it is not opened. Put the file itself there.")


def write_cache_file(path: Path, write: Callable[[Path], None]) -> None:
    """Make ``write`` fill a file of a cache, in one step; a disk that refuses (full, read-only) costs a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            write(temporary)
    except (OSError, SafetensorError, UserError) as error:
        log.warning("Could not write the cache file %s (%s); continuing without it.", path, error)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Give one process at a time the work on a file or folder; the lock is a file beside it and ends with the process.

    With ``wait``, other processes wait, and work without a lock where the disk refuses one. Without it they get a
    BlockingIOError, or an OSError where the lock file can't be made.
    """
    lock = _lock_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "Another process works on it", str(path)) from None
    except OSError:
        # Who waits only spares double work, so it continues without a lock where the disk refuses one.
        if not wait:
            raise
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):  # Windows removes no open file
                Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: afterwards it may be another's
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether this process or another holds the lock of a file or folder."""
    lock = _lock_of(path)
    # Without the file no process holds the lock, and to try it would leave a file behind.
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
    """Return how many bytes are free where a path is or is to be."""
    place = path.absolute()
    # What does not exist yet will be on the disk of the nearest folder above it.
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def size_in_words(count: int) -> str:
    """Format a number of bytes.

    >>> size_in_words(18_521_436_207), size_in_words(191_395_900), size_in_words(1_900)
    ('18.5 GB', '191 MB', '2 kB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))
