"""Downloads a published data set, from the hub or by torchvision, and compares it with what was published."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from fedvlp.data.benchmarks.comparison import differences
from fedvlp.data.benchmarks.hub import HubFile, ImageTable, Snapshot, fetch, find_snapshot, write_images, write_lists
from fedvlp.data.benchmarks.layouts import find_tree
from fedvlp.data.benchmarks.on_disk import OnDisk, is_on_disk, read_on_disk
from fedvlp.data.catalog import DESCRIPTIONS, Description
from fedvlp.data.catalog.description import HubSource, TorchvisionSource
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import free_bytes, locked, size_in_words, write_json


def check_target(description: Description, root: Path) -> None:
    """Raises UserError if there is something at the root that a download would overwrite."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UserError(
            f"Expected no folder, or an empty one, to download {description.name} to; {root} holds other files. Name "
            "another folder, or take those away."
        )


def check_counts(on_disk: OnDisk, description: Description, came_from: str, images: Path, folder: Path) -> None:
    """Raises UserError if what came is not what was published; it stays where it is.

    Args:
        on_disk: what came.
        description: the data set.
        came_from: what messages call its source.
        images: where it lies.
        folder: what to remove to be rid of it.
    """
    problems = differences(on_disk, description)
    if not problems:
        return
    more = f"; {len(problems) - 1} other domains differ, too" if len(problems) > 1 else ""
    raise UserError(
        f"{came_from} is not {description.name} as it was published: {problems[0]}{more}. What came is in {images}: "
        f"read it as images of your own (--config data/folders), or remove {folder} and get {description.name} from "
        f"{description.source}."
    )


SOURCE_FILE = "source.json"
"""Says where downloaded images came from; it is beside their domains' folders."""


def write_source(folder: Path, content: dict[str, Any], on_disk: OnDisk) -> None:
    """Writes where images came from, and how many there are of each domain.

    Args:
        folder: of the data set.
        content: its name, ``repository``, ``revision`` and terms, made to be written as JSON.
        on_disk: the images.
    """
    images = {domain: len(files) for domain, files in on_disk.files.items()}
    write_json(folder / SOURCE_FILE, {**content, "images": images})


def read_source(folder: Path) -> str | None:
    """Returns where the images in a folder came from, such as ``flwrlabs/pacs at 3941130732``; None if unknown."""
    try:
        content = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        return f"{content['repository']} at {content['revision']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


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

    def describe(self, description: Description, source: HubSource) -> dict[str, Any]:
        """Returns what was downloaded, made to be written as JSON."""
        files = [
            {"path": file.path, "bytes": file.size, "sha256": file.sha256, "rows": self.rows[file.path]}
            for file in self.snapshot.files
        ]
        return {
            "data_set": description.name,
            "hub": self.snapshot.hub,
            "repository": self.snapshot.repository,
            "revision": self.snapshot.revision,
            "terms": source.terms,
            "licence_of_the_card": self.snapshot.card.get("license"),
            "files": files,
        }

    def move_to(self, root: Path) -> None:
        """Gives what was written its name, in one step, and removes the rest."""
        _rename(self.images, root)
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
            f"{size_in_words(free_bytes(staging.folder))} are free. Make room; the same command resumes where it "
            "stopped."
        ) from error


def _rename(folder: Path, root: Path) -> None:
    """Gives what was downloaded its name, in one step."""
    if root.is_dir():
        root.rmdir()  # it is empty, which not every system would replace
    folder.rename(root)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


ARCHIVES = (".tar.gz", ".tgz", ".zip")


def download_by_torchvision(
    description: Description, source: TorchvisionSource, root: Path, say: Callable[[str], None]
) -> None:
    """Downloads a data set; nothing is at the root before all of it is, and was counted.

    Args:
        description: which data set.
        source: who downloads it.
        root: the folder to make; it does not exist, or is empty.
        say: is given each line that the user should read.

    Raises:
        UserError: if it can't be downloaded, there is too little room, or it is not what was published.
    """
    import torchvision

    # The archive and what is extracted of it lie there at the same time.
    needed = 2 * source.download_bytes + DISK_BLOCK * (description.images or 0)
    say(f"{description.name} by torchvision {torchvision.__version__} ({source.reader}), from {description.source}")
    say(f"terms: {description.licence}")
    free = check_room(root, needed)
    size = f"about {size_in_words(source.download_bytes)}"
    say(f"{size}, to {root}: needs {size_in_words(needed)} of room, {size_in_words(free)} are free")
    # What torchvision was stopped at looks whole to it, so it begins again.
    staging = root.with_name(f".{root.name}.download")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _fetch(description, source, staging)
    on_disk = read_on_disk(staging, description)
    check_counts(on_disk, description, f"What torchvision's {source.reader} downloads", staging, staging)
    content = {
        "data_set": description.name,
        "repository": f"torchvision.datasets.{source.reader}",
        "revision": torchvision.__version__,
        "terms": description.licence,
    }
    write_source(staging, content, on_disk)
    _rename(staging, root)
    count = sum(map(len, on_disk.files.values()))
    say(f"{count:,} images in {root}; their counts are those that were published")


def _fetch(description: Description, source: TorchvisionSource, folder: Path) -> None:
    """Lets torchvision download and extract, and removes what was extracted from.

    Raises:
        UserError: in place of all that torchvision raises.
    """
    import torchvision.datasets
    from torchvision.datasets.utils import download_and_extract_archive

    reader = getattr(torchvision.datasets, source.reader)
    try:
        if source.is_pickled:
            download_and_extract_archive(reader.url, str(folder), filename=reader.filename, md5=reader.tgz_md5)
        else:
            reader(str(folder), download=True)
    except Exception as error:  # of the network, the disk, or an archive; torchvision raises nearly every type
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(_reason(description, source, folder, error)) from error
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(ARCHIVES) and path.is_file():
            path.unlink()


def _reason(description: Description, source: TorchvisionSource, folder: Path, error: Exception) -> str:
    """Returns why nothing came, and what to do."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of {folder.parent} became full. Make room; the same command begins again."
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"torchvision's {source.reader} could not download {description.name} ({reason}). Check the network; the same "
        f"command begins again. It can also be had from {description.source}."
    )


MISSING = 'To download data sets, huggingface_hub and pyarrow are needed. Run: pip install "fedvlp[download]"'
PACKAGES = ("huggingface_hub", "pyarrow")
Say = Callable[[str], None]
log = logging.getLogger(__name__)


def obtain(description: Description, root: Path) -> None:
    """Downloads a data set unless it lies below the root, whoever put it there.

    Raises:
        UserError: if it can't be downloaded, or not to that folder.
    """
    source = source_of(description)
    if not is_on_disk(root, description):
        _download(description, source, root, log.warning)


def download(description: Description, root: Path, say: Say) -> None:
    """Downloads a data set; does nothing if that was done before.

    Args:
        description: which data set.
        root: folder of the domains' folders; it must not exist, or be empty.
        say: is given each line that the user should read.

    Raises:
        UserError: if it can't be downloaded, or not to that folder, or is not what was published.
    """
    _download(description, source_of(description), root, say)


def source_of(description: Description) -> HubSource | TorchvisionSource:
    """Returns where a data set can be downloaded from.

    Raises:
        UserError: if it can't.
    """
    source = description.download_source
    if source is None:
        names = [each.name for each in DESCRIPTIONS if each.download_source]
        raise UserError(
            f"{description.name} can't be downloaded by a command; it can be had from {description.source}. Those that "
            f"can: {', '.join(names)}."
        )
    return source


def _download(description: Description, source: HubSource | TorchvisionSource, root: Path, say: Say) -> None:
    """Downloads a data set, one process at a time; those that waited find it done."""
    if root.name in ("", ".."):
        raise UserError(f"Expected the name of a folder to make for {description.name}; got {str(root)!r}.")
    if _is_done(description, root, say):
        return
    # Nothing that is already on disk is written over or mixed with a download.
    check_target(description, root)
    if isinstance(source, TorchvisionSource):
        with locked(root):
            if not _is_done(description, root, say):
                download_by_torchvision(description, source, root, say)
        return
    if not all(map(find_spec, PACKAGES)):
        raise UserError(MISSING)
    snapshot = find_snapshot(source)
    with locked(root):
        if _is_done(description, root, say):
            return
        staging = Staging.beside(root, snapshot)
        _announce(staging, source, description, root, say)
        staging.make()
        _fill(staging, source, description)
        _complete(staging, source, description, root)
    say(f"{sum(staging.rows.values()):,} images in {root}; their counts are those that were published")


def _is_done(description: Description, root: Path, say: Say) -> bool:
    """Whether a data set was downloaded to a root before."""
    there = read_source(root)
    if there is None or not is_on_disk(root, description):
        return False
    say(f"{description.name} is in {root} already: {there}")
    return True


def _announce(staging: Staging, source: HubSource, description: Description, root: Path, say: Say) -> None:
    """Says what is going to be downloaded, before a byte of it is.

    Raises:
        UserError: if there is too little room for it.
    """
    snapshot = staging.snapshot
    say(f"{description.name} from {snapshot.page} at {snapshot.revision}")
    say(f"terms: {source.terms}; the copy's card says: {snapshot.card.get('license') or 'nothing'}")
    needed = staging.needed(description.images or 0)
    free = check_room(root, needed)
    files = f"{len(snapshot.files)} file{'s' if len(snapshot.files) > 1 else ''}, {size_in_words(snapshot.size)}"
    say(f"{files}, to {root}: needs {size_in_words(needed)} of room, {size_in_words(free)} are free")


def _fill(staging: Staging, source: HubSource, description: Description) -> None:
    """Downloads what is missing and writes its images, one file of the hub after another."""
    files = staging.snapshot.files
    with full_disk_explained(staging, description.images or 0):
        for file in staging.missing:
            title = f"{description.name} {files.index(file) + 1}/{len(files)}"
            fetch(staging.snapshot, file, staging.path(file), f"downloading {title}")
            staging.finish(file, _unpack(staging, file, source, description, f"writing {title}"))


def _unpack(staging: Staging, file: HubFile, source: HubSource, description: Description, title: str) -> int:
    """Writes the images of one file of the hub, and returns how many there are."""
    table = ImageTable(staging.path(file), file.path, source, description, staging.snapshot.card)
    try:
        return write_images(table, staging.images, PurePosixPath(file.path).stem, title)
    finally:
        table.close()


def _complete(staging: Staging, source: HubSource, description: Description, root: Path) -> None:
    """Compares what was written with what was published, and gives it its name.

    Raises:
        UserError: if it differs; it stays where it was written.
    """
    with full_disk_explained(staging, 0):
        if source.has_official_split:
            write_lists(staging.images, find_tree(staging.images, description).files, description)
        on_disk = read_on_disk(staging.images, description)
        came_from = f"{staging.snapshot.page} at {staging.snapshot.revision}"
        check_counts(on_disk, description, came_from, staging.images, staging.folder)
        write_source(staging.images, staging.describe(description, source), on_disk)
    staging.move_to(root)
