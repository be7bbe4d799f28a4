"""Data sets that torchvision downloads from their publishers, checked before they get their folder."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from fedvlp.data.benchmarks.download.checks import check_counts
from fedvlp.data.benchmarks.download.source_file import write_origin
from fedvlp.data.benchmarks.download.staging import DISK_BLOCK, check_room
from fedvlp.data.benchmarks.on_disk import read_on_disk
from fedvlp.data.catalog import Description
from fedvlp.data.catalog.description import TorchvisionSource
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import size_in_words

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
    # What torchvision was stopped at looks whole to it, so it begins anew.
    staging = root.with_name(f".{root.name}.download")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _fetch(description, source, staging)
    found = read_on_disk(staging, description)
    check_counts(found, description, f"What torchvision's {source.reader} downloads", staging, staging)
    images = {domain: len(files) for domain, files in found.files.items()}
    origin = f"torchvision.datasets.{source.reader}"
    write_origin(staging, description.name, origin, torchvision.__version__, description.licence, images)
    _move(staging, root)
    say(f"{sum(images.values()):,} images in {root}; their counts are those that were published")


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
        return f"The disk of {folder.parent} became full. Make room; the same command begins anew."
    told = " ".join(str(error).split()) or type(error).__name__
    return (
        f"torchvision's {source.reader} could not download {description.name} ({told}). Check the network; the same "
        f"command begins anew. It can also be had from {description.source}."
    )


def _move(staging: Path, root: Path) -> None:
    """Gives what was downloaded its name, in one step."""
    if root.is_dir():
        root.rmdir()  # it is empty, which not every system would replace
    staging.rename(root)
