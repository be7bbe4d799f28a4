"""The folder in which a download is made, beside its target, so that nothing half-written is taken for whole."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedvlp.data.benchmarks.download.hub import HubFile, Snapshot
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import free_bytes, size_in_words, write_json

DISK_BLOCK = 4096
"""Bytes that a file may take on disk besides its own."""
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Staging:
    """What of a download is there.

    Attributes:
        folder: where it is made.
        snapshot: what is downloaded.
        rows: the number of images in each file of which all have been written.
    """

    folder: Path
    snapshot: Snapshot
    rows: dict[str, int] = field(default_factory=dict)

    @classmethod
    def beside(cls, root: Path, snapshot: Snapshot) -> Staging:
        """Finds what an interrupted download of the same commit left; removes what is of another."""
        staging = cls(root.with_name(f".{root.name}.download"), snapshot)
        rows = staging._read()
        if rows is None:
            shutil.rmtree(staging.folder, ignore_errors=True)
        staging.rows = rows or {}
        return staging

    def make(self) -> None:
        """Makes the folders, unless they are there."""
        self.files.mkdir(parents=True, exist_ok=True)
        self.images.mkdir(exist_ok=True)
        self._write()

    @property
    def files(self) -> Path:
        """Folder of the hub's files, each until its images are written."""
        return self.folder / "files"

    @property
    def images(self) -> Path:
        """Folder of what is written, as it will lie in the target."""
        return self.folder / "images"

    def path(self, file: HubFile) -> Path:
        """Returns where a file of the hub is kept."""
        return self.files / Path(file.path).name

    def finish(self, file: HubFile, rows: int) -> None:
        """Notes that all images of a file were written, and removes it."""
        self.rows[file.path] = rows
        self._write()
        self.path(file).unlink(missing_ok=True)

    @property
    def missing(self) -> list[HubFile]:
        """The files whose images have not all been written."""
        return [file for file in self.snapshot.files if file.path not in self.rows]

    def needed(self, images: int) -> int:
        """Returns the bytes that the disk must still have room for.

        Args:
            images: how many images the whole data set has.
        """
        if not self.missing:
            return 0
        # One of the hub's files at a time lies beside the images.
        there = sum(_size(self.path(file)) + _size(_part(self.path(file))) for file in self.missing)
        left = sum(file.size for file in self.missing)
        blocks = round(images * DISK_BLOCK * left / self.snapshot.size)
        return left + blocks + max(file.size for file in self.missing) - there

    def move_to(self, root: Path) -> None:
        """Gives what was written its name, in one step, and removes the rest."""
        if root.is_dir():
            root.rmdir()  # it is empty, which not every system would replace
        self.images.rename(root)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    def _read(self) -> dict[str, int] | None:
        """Reads which files were written out; None if nothing is known of this commit."""
        try:
            state = json.loads(self._state.read_text(encoding="utf-8"))
            if (state["repository"], state["revision"]) == (self.snapshot.repository, self.snapshot.revision):
                return {str(path): int(rows) for path, rows in state["rows"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    def _write(self) -> None:
        repository = {"repository": self.snapshot.repository, "revision": self.snapshot.revision}
        write_json(self._state, {**repository, "rows": self.rows})


def check_room(root: Path, needed: int) -> int:
    """Returns how many bytes are free where a folder is to be.

    Raises:
        UserError: if less than is needed.
    """
    free = free_bytes(root)
    if free < needed:
        raise UserError(
            f"The disk of {root} has too little room: {size_in_words(needed)} are needed, {size_in_words(free)} are "
            "free. Make room, or name a folder on another disk."
        )
    return free


@contextmanager
def full_disk_explained(staging: Staging, images: int) -> Iterator[None]:
    """Says how much room is lacking if the disk becomes full in the block.

    Raises:
        UserError: in place of the OSError of a full disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"The disk of {staging.folder.parent} is full: {size_in_words(staging.needed(images))} are still needed, "
            f"{size_in_words(free_bytes(staging.folder))} are free. Make room; the same command goes on where it "
            "stopped."
        ) from error


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
