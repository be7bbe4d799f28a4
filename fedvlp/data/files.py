"""Files of the cache: written whole or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

log = logging.getLogger(__name__)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets ``write`` fill a temporary file beside ``path``, which then takes its place in one step.

    Several processes may do so at once: each reader sees one whole file. A cache is a convenience, so a disk that
    refuses (full, read-only) costs a logged warning and not the run.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        log.warning("Could not write the cache file %s (%s); going on without it.", path, error)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
