"""All that is asked of the Hugging Face hub: which files a data set has, and their bytes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from fedvlp.data.catalog.description import HubSource
from fedvlp.utils.errors import UserError

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
    told = " ".join(str(error).split()) or type(error).__name__
    return (
        f"{hub} could not be reached ({told}). Check the network, or name a mirror in HF_ENDPOINT; the same command "
        "goes on where it stopped."
    )
