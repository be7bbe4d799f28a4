"""Downloads a published data set, writes it out as folders and compares it with what was published."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from fedvlp.data.benchmarks.download.by_torchvision import download_by_torchvision
from fedvlp.data.benchmarks.download.checks import check_counts, check_target
from fedvlp.data.benchmarks.download.hub import HubFile, fetch, find_snapshot
from fedvlp.data.benchmarks.download.parquet import ImageTable
from fedvlp.data.benchmarks.download.source_file import read_source, write_source
from fedvlp.data.benchmarks.download.staging import Staging, check_room, full_disk_explained
from fedvlp.data.benchmarks.download.writing import write_images, write_lists
from fedvlp.data.benchmarks.layouts import find_tree
from fedvlp.data.benchmarks.on_disk import is_on_disk, read_on_disk
from fedvlp.data.catalog import DESCRIPTIONS, Description
from fedvlp.data.catalog.description import HubSource, TorchvisionSource
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import locked, size_in_words

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
        found = read_on_disk(staging.images, description)
        came_from = f"{staging.snapshot.page} at {staging.snapshot.revision}"
        check_counts(found, description, came_from, staging.images, staging.folder)
        write_source(staging.images, description.name, staging.snapshot, source.terms, staging.rows, found.files)
    staging.move_to(root)
