"""Data sets on the Hugging Face hub: which files there are, their bytes, and the images of their rows."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from fedvlp.data.catalog import Description
from fedvlp.data.catalog.description import HubSource
from fedvlp.data.files.folders import ImageFile
from fedvlp.data.files.images import EXTENSIONS
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BLOCK = 16 * 2**20
"""Bytes that are asked for at once, and at most fetched twice after an interruption."""
DIGEST_BLOCK = 2**20


@dataclass(frozen=True)
class HubFile:
    """One file of a repository.

    Attributes:
        path: where it lies in the repository.
        size: in bytes.
        sha256: what the hub says its digest is; None for a small file that it keeps otherwise.
    """

    path: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit.

    Attributes:
        hub: address of the hub.
        repository: ``owner/name``.
        revision: the commit.
        files: those that are wanted, sorted by path.
        card: what the repository's card says in machine-readable form, such as its licence and features.
    """

    hub: str
    repository: str
    revision: str
    files: tuple[HubFile, ...]
    card: Mapping[str, Any]

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(file.size for file in self.files)

    @property
    def page(self) -> str:
        """The address at which a person finds the repository."""
        return f"{self.hub}/datasets/{self.repository}"


def find_snapshot(source: HubSource) -> Snapshot:
    """Asks the hub what a data set consists of.

    Raises:
        UserError: if the hub can't be reached or refuses, or the repository has no such files.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    with explained(source.repository, source.revision, hub.endpoint):
        info = hub.dataset_info(source.repository, revision=source.revision, files_metadata=True)
    files = []
    for sibling in info.siblings or []:
        is_wanted = PurePosixPath(sibling.rfilename).parent == PurePosixPath(source.folder)
        if is_wanted and sibling.rfilename.endswith(".parquet") and sibling.size is not None:
            files.append(HubFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None))
    snapshot = Snapshot(
        hub=hub.endpoint,
        repository=source.repository,
        revision=info.sha or source.revision or "main",
        files=tuple(sorted(files, key=lambda file: file.path)),
        card={name: info.card_data.get(name) for name in ("license", "dataset_info")} if info.card_data else {},
    )
    if not files:
        raise UserError(
            f"Expected {source.folder}/*.parquet in {snapshot.page} at {snapshot.revision}; there is none. The copy "
            "was changed: get the data set from its publisher."
        )
    return snapshot


def fetch(snapshot: Snapshot, file: HubFile, target: Path, title: str) -> None:
    """Downloads a file, from where an interrupted call stopped, and checks its digest.

    Args:
        snapshot: what the file is of.
        file: which one.
        target: where it is written; until it is whole, it has ``.part`` behind its name.
        title: stands before the bar.

    Raises:
        UserError: if the hub can't be reached or refuses, or sent something else than it had announced.
        OSError: if the disk is full or refuses.
    """
    if target.exists():
        return
    part = target.with_name(f"{target.name}.part")
    # It is of another file than the hub has now.
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    with explained(snapshot.repository, snapshot.revision, snapshot.hub):
        _append_missing(snapshot, file, part, title)
    _check_digest(file, part)
    part.replace(target)


def _append_missing(snapshot: Snapshot, file: HubFile, part: Path, title: str) -> None:
    """Appends what a file still lacks, block by block."""
    from huggingface_hub import HfFileSystem

    path = f"datasets/{snapshot.repository}@{snapshot.revision}/{file.path}"
    with part.open("ab") as written:
        done = written.tell()
        bar = tqdm(desc=title, total=file.size, initial=done, unit="B", unit_scale=True, leave=False, disable=None)
        # An instance of its own: a shared one would remember what another hub said.
        files = HfFileSystem(endpoint=snapshot.hub, skip_instance_cache=True)
        with bar, files.open(path, "rb", block_size=BLOCK, cache_type="none") as remote:
            while done < file.size:
                wanted = min(BLOCK, file.size - done)
                remote.seek(done)
                block = remote.read(wanted)
                if len(block) != wanted:
                    raise UserError(
                        f"Expected {wanted:,} bytes of {file.path} from {snapshot.hub}; got {len(block):,}. That hub "
                        "sends no parts of files: take another in HF_ENDPOINT, or none."
                    )
                written.write(block)
                done += wanted
                bar.update(wanted)


def _check_digest(file: HubFile, part: Path) -> None:
    """Raises UserError and removes a file that is not what the hub announced."""
    if file.sha256 is None:
        return
    digest = hashlib.sha256()
    with part.open("rb") as content:
        while block := content.read(DIGEST_BLOCK):
            digest.update(block)
    if digest.hexdigest() != file.sha256:
        part.unlink()
        raise UserError(
            f"Expected {file.path} with the SHA-256 {file.sha256}; what came has {digest.hexdigest()}. It was removed. "
            "Call the same command again; if it stays so, something between here and the hub changes files."
        )


@contextmanager
def explained(repository: str, revision: str | None, hub: str) -> Iterator[None]:
    """Turns what the hub's client raises into one message.

    Raises:
        UserError: in place of all that is no fault of this disk.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO):  # of the disk
            raise
        raise UserError(_reason(error, repository, revision, hub)) from error
    except Exception as error:  # the client raises those of whichever HTTP library it is made with
        raise UserError(_reason(error, repository, revision, hub)) from error


def _reason(error: Exception, repository: str, revision: str | None, hub: str) -> str:
    """Returns why the hub gave nothing, and what to do."""
    from huggingface_hub import errors

    page = f"{hub}/datasets/{repository}"
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, errors.HfHubHTTPError):
        error = error.__cause__
    if isinstance(error, errors.GatedRepoError):
        return f"{page} is gated. Accept its terms on that page, then set HF_TOKEN to a token of yours."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{page} does not exist, or not for you. If you have been given access, set HF_TOKEN to a token of yours."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{page} has no revision {revision} any more. Get the data set from its publisher."
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing is downloaded. Unset it, or download on another machine."
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else "an error"
        return (
            f"{page} answered {status}. If it asks for a login, set HF_TOKEN; else call the same command again later."
        )
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"{hub} could not be reached ({reason}). Check the network, or name a mirror in HF_ENDPOINT; the same command "
        "resumes where it stopped."
    )


ROWS = 64
"""How many rows are in memory at once."""
BUFFER = 2**20


@dataclass(frozen=True)
class ImageRow:
    """One row.

    Attributes:
        domain: the data set's own name of its domain.
        class_name: the data set's own name of its class.
        content: the image file, as it is stored.
        stored_name: the name that the file had before; empty if that is not kept.
    """

    domain: str
    class_name: str
    content: bytes
    stored_name: str


class ImageTable:
    """A parquet file of images.

    Args:
        path: the file.
        name: what messages call it.
        source: which columns it has.
        description: which names the data set has.
        card: what the repository's card says of the columns, for a file that says nothing.
    """

    def __init__(
        self, path: Path, name: str, source: HubSource, description: Description, card: Mapping[str, Any]
    ) -> None:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        self.name = name
        self.source = source
        self.description = description
        try:
            # A file read ahead would be in memory as a whole.
            self._file: ParquetFile = ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
        except (ArrowException, OSError) as error:
            raise UserError(f"{name} is no parquet file ({error}). Get the data set from its publisher.") from error
        self._features = _features_of_card(card) | _features_of_file(self._file)
        self._check_columns()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def rows(self) -> Iterator[ImageRow]:
        """Yields the rows in order.

        Raises:
            UserError: if a row has no image, or a domain or label that is not the data set's, or has no name.
        """
        from pyarrow import ArrowException

        try:
            for image, domain, label in self._values():
                content, stored_name = _content(image)
                if not content:
                    raise UserError(f"{self.name} has a row without an image. Get the data set from its publisher.")
                yield ImageRow(self._domain(domain), self._class_name(label), content, stored_name)
        except (ArrowException, OSError) as error:
            raise UserError(f"{self.name} is damaged ({error}). Get the data set from its publisher.") from error

    def _values(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yields image, domain and label of each row, as they are stored."""
        columns = [self.source.image_column, self.source.domain_column, self.source.label_column]
        for batch in self._file.iter_batches(batch_size=ROWS, columns=columns):
            images, domains, labels = (batch.column(column).to_pylist() for column in columns)
            yield from zip(images, domains, labels, strict=True)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _check_columns(self) -> None:
        """Raises if a column is lacking."""
        found = self._file.schema_arrow.names
        wanted = [self.source.image_column, self.source.domain_column, self.source.label_column]
        if lacking := [column for column in wanted if column not in found]:
            raise UserError(
                f"Expected the columns {', '.join(wanted)} in {self.name}; found {', '.join(found)}, so "
                f"{', '.join(lacking)} is missing. The copy was changed: get the data set from its publisher."
            )

    def _domain(self, value: Any) -> str:
        name = self._name_of(self.source.domain_column, value)
        domain = self.description.domain_of(name)
        if domain is None:
            raise UserError(self._unknown(self.source.domain_column, name, self.description.domains))
        return domain

    def _class_name(self, value: Any) -> str:
        name = self._name_of(self.source.label_column, value)
        class_name = self.description.class_of(name)
        if class_name is None:
            raise UserError(self._unknown(self.source.label_column, name, self.description.class_names))
        return class_name

    def _name_of(self, column: str, value: Any) -> str:
        """Returns the name that a value stands for; a number without a name stays what it is."""
        names = self._features.get(column)
        if isinstance(value, int) and names and 0 <= value < len(names):
            return names[value]
        return str(value)

    def _unknown(self, column: str, name: str, known: Sequence[str]) -> str:
        """Returns what to say of a name that is not the data set's."""
        if name.isdecimal() and not self._features.get(column):
            return (
                f"The column {column} of {self.name} has numbers, such as {name}, and neither the file nor the card of "
                f"its repository says which is which of {', '.join(known[:6])}. Their order is not guessed: get "
                f"{self.description.name} from its publisher."
            )
        return (
            f"The column {column} of {self.name} has {name!r}, which is not of {self.description.name} "
            f"({', '.join(known[:6])}{' ...' if len(known) > 6 else ''}). Get the data set from its publisher."
        )


def _content(image: Any) -> tuple[bytes, str]:
    """Returns an image's bytes, and the name that its file had."""
    if isinstance(image, dict):
        return image.get("bytes") or b"", Path(image.get("path") or "").name
    return image or b"", ""


def _features_of_file(file: ParquetFile) -> dict[str, list[str]]:
    """Returns the names that the numbers of a column stand for, by column, as the file's own metadata say."""
    metadata = file.schema_arrow.metadata or {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        labelled = [column for column, feature in features.items() if "names" in feature]
        return {column: list(map(str, features[column]["names"])) for column in labelled}
    except (KeyError, TypeError, ValueError):
        return {}


def _features_of_card(card: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the same as a repository's card says it, if it describes one configuration."""
    try:
        labelled = {}
        for feature in card["dataset_info"]["features"]:
            if isinstance(feature["dtype"], dict):
                names = feature["dtype"]["class_label"]["names"]
                labelled[feature["name"]] = [str(names[str(number)]) for number in range(len(names))]
        return labelled
    except (KeyError, TypeError):
        return {}


STARTS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""How files of images begin."""
LISTED_SPLITS = ("train", "test")


def write_images(table: ImageTable, folder: Path, prefix: str, title: str) -> int:
    """Writes the image of each row as it is stored, and returns how many there are.

    Args:
        table: the rows.
        folder: where the domains' folders are to be.
        prefix: begins the name of each file, so that files of several tables differ.
        title: stands before the bar.

    Raises:
        UserError: if a row is no image of the data set.
        OSError: if the disk is full or refuses.
    """
    made: set[Path] = set()
    bar = tqdm(desc=title, total=len(table), unit="image", leave=False, disable=None)
    with bar:
        for number, row in enumerate(table.rows()):
            parent = folder / row.domain / row.class_name
            if parent not in made:
                parent.mkdir(parents=True, exist_ok=True)
                made.add(parent)
            (parent / _file_name(row, table, prefix, number)).write_bytes(row.content)
            bar.update()
    return len(table)


def _file_name(row: ImageRow, table: ImageTable, prefix: str, number: int) -> str:
    """Returns the name of a row's file: sorted as the rows are, whatever came before."""
    # An image that is known to be bad is known by its name, and is left out by it.
    known_bad = f"{row.domain}/{row.class_name}/{row.stored_name}" in table.description.known_bad
    if known_bad:
        return row.stored_name
    return f"{prefix}_{number:06d}{_extension(row, table, number)}"


def _extension(row: ImageRow, table: ImageTable, number: int) -> str:
    for start, extension in STARTS.items():
        if row.content.startswith(start):
            return extension
    stored = Path(row.stored_name).suffix.lower()
    if stored in EXTENSIONS:
        return stored
    raise UserError(f"Row {number} of {table.name} is no image that is known. Get the data set from its publisher.")


def write_lists(folder: Path, files: Mapping[str, list[ImageFile]], description: Description) -> None:
    """Writes which images train and which test, as the names of the hub's files say, into the folder ``splits``."""
    (folder / "splits").mkdir(exist_ok=True)
    numbers = {name: number for number, name in enumerate(description.class_names)}
    for domain, split in product(files, LISTED_SPLITS):
        listed = [image for image in files[domain] if image.name.rsplit("/", 1)[-1].startswith(f"{split}-")]
        lines = [f"{image.name} {numbers[image.class_name]}\n" for image in listed]
        write_text(folder / "splits" / f"{domain}_{split}.txt", "".join(lines))
