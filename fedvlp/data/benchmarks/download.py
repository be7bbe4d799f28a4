"""Download published data sets from the Hugging Face hub or with torchvision, and check published counts.

Copies on the hub consist of parquet files. The bytes of each image are written to ``domain/class/image``.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from fedvlp.catalog.description import DESCRIPTIONS, Description, HubSource, TorchvisionSource
from fedvlp.data.benchmarks.comparison import differences
from fedvlp.data.benchmarks.layouts import find_layout, find_name
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.files.arrow import image_extension, label_names, read_rows, read_schema
from fedvlp.data.rows import ImageFile
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import free_bytes, locked, size_in_words, write_json, write_text

SOURCE_FILE = "source.json"
"""File that records the source of downloaded images, next to the domains' folders."""
DISK_BLOCK = 4096
"""Bytes that a file may occupy on disk in addition to its content."""
Echo = Callable[[str], None]


def download(description: Description, root: Path, echo: Echo) -> None:
    """Download a data set, one process at a time; do nothing if it was downloaded before.

    The root stays empty until all images have been downloaded and counted. Raises UserError if it can't be downloaded,
    the folder can't be used, or images differ from the published data set.

    Args:
        description: The data set.
        root: Folder for the domains' folders; it must be missing or empty.
        echo: Prints a line for the user.
    """
    source = find_source(description)
    if isinstance(source, HubSource) and not (find_spec("huggingface_hub") and find_spec("pyarrow")):
        raise UserError('Downloading data sets needs huggingface_hub and pyarrow. Run: pip install "fedvlp[download]"')
    with locked(root):
        existing = read_source(root)
        if existing is not None and find_layout(root, description) is not None:
            echo(f"{description.name} is in {root} already: {existing}")
            return
        # Files on disk are neither overwritten nor mixed with a download.
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UserError(
                f"Expected a missing or empty folder for the download of {description.name}; {root} has other files. "
                "Choose another folder, or remove these files."
            )
        staging = root.with_name(f".{root.name}.download")
        if isinstance(source, TorchvisionSource):
            _fetch_with_torchvision(description, source, root, staging, echo)
        else:
            _fetch_from_hub(description, source, root, staging, echo)


def find_source(description: Description) -> HubSource | TorchvisionSource:
    """Look up where to download a data set; raise UserError if it has no source."""
    if description.download_source is None:
        names = [other.name for other in DESCRIPTIONS if other.download_source]
        raise UserError(
            f"{description.name} can't be downloaded with a command; it is available from {description.source}. The "
            f"command supports {', '.join(names)}."
        )
    return description.download_source


def read_source(folder: Path) -> str | None:
    """Read the source of the images in a folder, such as ``flwrlabs/pacs at 3941130732``; None if unknown."""
    try:
        content = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        return f"{content['repository']} at {content['revision']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _finish(description: Description, images: Path, root: Path, repository: str, revision: str, echo: Echo) -> None:
    manifest = read_manifest(images, description)
    problems = differences(manifest, description)
    if problems:
        more = f"; {len(problems) - 1} other domains differ as well" if len(problems) > 1 else ""
        raise UserError(
            f"{repository} at {revision} differs from the published {description.name}: {problems[0]}{more}. The "
            f"download is in {images}. Read it as your own images (--config data/folders), or remove that folder and "
            f"get {description.name} from {description.source}."
        )
    counts = {domain: len(files) for domain, files in manifest.files.items()}
    source = {"repository": repository, "revision": revision, "terms": description.licence}
    write_json(images / SOURCE_FILE, {"data_set": description.name, **source, "images": counts})
    if root.is_dir():
        root.rmdir()  # not every system replaces an empty folder
    images.rename(root)
    echo(f"{sum(counts.values()):,} images in {root}; their counts match the published ones")


def _announce(description: Description, root: Path, title: str, size: int, echo: Echo) -> None:
    """Announce the size of a download; raise UserError if the disk has too little space."""
    # Downloaded files and extracted images are on the disk at the same time.
    needed = 2 * size + DISK_BLOCK * (description.images or 0)
    free = free_bytes(root)
    if free < needed:
        raise UserError(
            f"The disk of {root} has too little space: {size_in_words(needed)} are needed, {size_in_words(free)} are "
            "free. Free some space, or choose a folder on another disk."
        )
    echo(f"{title}, to {root}: needs {size_in_words(needed)} of disk space, {size_in_words(free)} are free")


def _fetch_with_torchvision(
    description: Description, source: TorchvisionSource, root: Path, staging: Path, echo: Echo
) -> None:
    import torchvision.datasets

    version = torchvision.__version__
    echo(f"{description.name} with torchvision {version} ({source.reader}), from {description.source}")
    echo(f"terms: {description.licence}")
    size = source.download_bytes
    _announce(description, root, f"about {size_in_words(size)}", size, echo)
    # An interrupted extraction looks complete to torchvision, so it starts from scratch.
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        getattr(torchvision.datasets, source.reader)(str(staging), download=True)
    except Exception as error:  # torchvision raises many types for problems with network, disk or archives
        shutil.rmtree(staging, ignore_errors=True)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"torchvision's {source.reader} could not download {description.name} ({reason}). Check network and disk, "
            f"and run the same command to start again. It is also available from {description.source}."
        ) from error
    for path in sorted(staging.rglob("*")):
        if path.name.endswith((".tar.gz", ".tgz", ".zip")) and path.is_file():
            path.unlink()
    _finish(description, staging, root, f"torchvision.datasets.{source.reader}", version, echo)


def _fetch_from_hub(description: Description, source: HubSource, root: Path, staging: Path, echo: Echo) -> None:
    from huggingface_hub import HfApi

    hub = HfApi()
    page = f"{hub.endpoint}/datasets/{source.repository}"
    with _explain_errors(page):
        info = hub.dataset_info(source.repository, revision=source.revision, files_metadata=True)
    revision = info.sha or source.revision or "main"
    sizes: dict[str, int] = {}
    for file in sorted(info.siblings or [], key=lambda file: file.rfilename):
        if re.fullmatch(r"data/[^/]+\.parquet", file.rfilename):
            sizes[file.rfilename] = file.size or 0
    if not sizes:
        raise UserError(
            f"Expected data/*.parquet in {page} at {revision}; found none. The copy was changed, so get the data set "
            "from its publisher."
        )
    licence = info.card_data.get("license") if info.card_data else None
    echo(f"{description.name} from {page} at {revision}")
    echo(f"terms: {description.licence}; licence of the copy: {licence or 'not stated'}")
    size = sum(sizes.values())
    _announce(description, root, f"files: {len(sizes)}, {size_in_words(size)}", size, echo)
    # An interrupted download resumes if its files have the same commit.
    folder = staging / revision
    if not folder.exists():
        shutil.rmtree(staging, ignore_errors=True)
    files = folder / "files"
    images = folder / "images"
    for name in sizes:
        with _explain_errors(page):
            hub.hf_hub_download(source.repository, name, repo_type="dataset", revision=revision, local_dir=files)
    for name in sizes:
        write_images(files / name, images, source, description)
    if source.has_official_split:
        _write_lists(images, read_manifest(images, description).files, description)
    _finish(description, images, root, source.repository, revision, echo)
    shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _explain_errors(page: str) -> Iterator[None]:
    """Add a remedy to the hub client's errors about gates, tokens, offline mode and the network."""
    try:
        yield
    except Exception as error:  # the client raises its HTTP library's errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{page} could not be downloaded ({reason}). Check network and disk, or set HF_ENDPOINT to a mirror. If "
            "access is restricted, accept the terms on that page and set HF_TOKEN. The same command resumes where it "
            "stopped."
        ) from error


def write_images(path: Path, folder: Path, source: HubSource, description: Description) -> None:
    """Write the unchanged image of each row of a parquet file to ``domain/class/image`` in a folder.

    Raises UserError if the file has other columns, or a row is not an image of the data set.
    """
    columns = ["image", source.domain_column, "label"]
    schema = read_schema(path)
    if not set(columns) <= set(schema.names):
        raise UserError(
            f"Expected the columns {', '.join(columns)} in {path.name}; it has {', '.join(schema.names)}. The copy was "
            "changed, so get the data set from its publisher."
        )
    names = {column: dict(enumerate(in_column)) for column, in_column in label_names(schema).items()}
    rows = tqdm(read_rows(path, columns), f"writing {path.name}", unit="image", leave=False, disable=None)
    for number, row in enumerate(rows):
        domain_name, class_name = (names.get(column, {}).get(row[column], str(row[column])) for column in columns[1:])
        domain_folder = find_name("domain", domain_name, description, path.name)
        class_folder = f"{domain_folder}/{find_name('class', class_name, description, path.name)}"
        content, stored_name = row["image"]["bytes"] or b"", PurePosixPath(row["image"]["path"] or "").name
        extension = image_extension(content, stored_name)
        if not extension:
            raise UserError(f"Row {number} of {path.name} has no known image type. Get the data from its publisher.")
        # Names consist of the hub's file name and the row, so they are ordered and equal on every machine.
        name = f"{path.stem}_{number:06d}{extension}"
        # Readers recognise a known bad image by its name.
        if f"{class_folder}/{stored_name}" in description.known_bad:
            name = stored_name
        target = folder / class_folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _write_lists(folder: Path, files: Mapping[str, Sequence[ImageFile]], description: Description) -> None:
    """Write lists of training and test images into the folder ``splits``; the hub's file names contain the split."""
    (folder / "splits").mkdir(exist_ok=True)
    numbers = {name: number for number, name in enumerate(description.class_names)}
    for domain, split in product(files, ("train", "test")):
        listed = [image for image in files[domain] if image.name.rsplit("/", 1)[-1].startswith(f"{split}-")]
        lines = [f"{image.name} {numbers[image.class_name]}\n" for image in listed]
        write_text(folder / "splits" / f"{domain}_{split}.txt", "".join(lines))
