"""``events.jsonl`` of a run: what happened, one JSON object a line, written as it happens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedvlp.utils.errors import UserError
from fedvlp.utils.json_text import parse_json

FILE = "events.jsonl"
LONGEST_LINE = 1_000_000


def append_events(run: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Adds events to a run's file, each with the time at which they are written, in UTC.

    What a killed process left of a line is cut off first.

    Args:
        run: the run's folder.
        events: what happened, each with its name under ``event``.

    Raises:
        OSError: with the file's path, if it can't be written.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    text = "".join(json.dumps({"time": now, **event}) + "\n" for event in events)
    path = run / FILE
    try:
        with open(path, "a+b") as file:
            _cut_off_half_line(file)
            file.write(text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _cut_off_half_line(file: Any) -> None:
    """Removes what stands behind the last end of a line."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    start = max(0, size - LONGEST_LINE)
    file.seek(start)
    file.truncate(start + file.read().rfind(b"\n") + 1)


def read_events(run: Path) -> Iterator[dict[str, Any]]:
    """Yields a run's events; a line that is only half there, as it is just being written, is left out.

    Raises:
        UserError: if the run has none, or a line is no event.
    """
    path = run / FILE
    if not path.is_file():
        raise UserError(f"{path} is missing, so nothing is known of a run there. Pass the folder of a run.")
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if line.endswith(b"\n"):
                yield _parsed(path, number, line)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Returns the event in a line."""
    try:
        event = parse_json(line.decode())
    except ValueError:  # also of bytes that are no UTF-8
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise UserError(f"Line {number} of {path} is no event. Move the file away to see the rest of the run.")
    return event
