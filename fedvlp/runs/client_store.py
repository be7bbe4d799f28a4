"""Where the tensors that stay on the clients are between rounds: in memory, or in one file for each client."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvlp.core.state import State, add_prefix, strip_prefix
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import check_header, make_durable, read_tensors, write_tensors

FOLDER = "clients"

StoredState = State | str
"""Tensors themselves, or the name of the file that holds them; empty where there is nothing to keep."""


@dataclass(frozen=True, eq=False)
class StatesOnDisk(Mapping[int, State]):
    """States of clients in ``files``, each read when it is asked for.

    ``group`` is ``personal`` or ``optimizer``. Without a ``folder`` the files stay at the clients' own sites.
    """

    folder: Path | None
    group: str
    files: Mapping[int, str]

    def __getitem__(self, client: int) -> State:
        """Read the state of a client; nothing of one that is at its site."""
        if self.folder is None:
            return {}
        return strip_prefix(read_tensors(self.folder / self.files[client], f"{self.group}/")[0], self.group)

    def __iter__(self) -> Iterator[int]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __contains__(self, client: object) -> bool:
        # Mapping's own way would read the file to find out.
        return client in self.files

    def check(self) -> None:
        """Raise UserError if a file is missing, damaged or of another kind."""
        if self.folder is None:
            return
        for name in set(self.files.values()):
            check_header(self.folder / name, read_tensors(self.folder / name)[1], "client")


class ClientStore:
    """Keeps the clients' personal tensors from one round to the next: in memory, and checkpoints hold them."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Take over a run's states of a group, ``personal`` or ``optimizer``; raise UserError if they are elsewhere."""
        return dict(states)

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Store both states of one client after a phase, and return what the run state has to hold of them."""
        return personal, optimizer_state

    def flush(self) -> None:
        """Make what was stored in a phase survive a power failure."""

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Delete what no checkpoint and no ``current`` state refers to.

        Only states of ``finished`` rounds go, since other processes may be storing those of the next; with None, before
        the first round, whatever an interrupted run left.
        """


class StoreAtSites(ClientStore):
    """Keeps the names under which sites find personal tensors; the states themselves never come here."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Return the names."""
        if states and not are_at_sites(states):
            raise UserError(
                "The run to resume keeps its clients' tensors in its folder, as a simulation does, and not at sites. "
                "Start from scratch."
            )
        return StatesOnDisk(None, group, files_of(states))


class DiskStore(ClientStore):
    """Writes the states of each client to a separate file in a run's folder, which every process must see.

    A file never changes: what a client keeps later is another file, so that an older checkpoint still finds its own.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / FOLDER
        # A resumed run counts on from the files that are there, so that it never writes under one of their names.
        self.phase = 1 + max((round_and_phase(path)[1] for path in self.folder.glob("*.safetensors")), default=-1)
        self.written: list[Path] = []

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Return the states as files."""
        if isinstance(states, StatesOnDisk) or not states:
            return StatesOnDisk(self.folder, group, files_of(states))
        raise UserError(
            "The run to resume keeps its clients' tensors in its checkpoint, not in files. Set personal_on_disk to "
            "false, or start from scratch."
        )

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Write both states of a client and return the file's name for each that is not empty."""
        if not personal and not optimizer_state:
            return "", ""
        path = self.folder / f"{client:06d}-{round:05d}-{self.phase}.safetensors"
        tensors = add_prefix(personal, "personal") | add_prefix(optimizer_state, "optimizer")
        write_tensors(path, tensors, {"kind": "client"}, is_durable=False)
        self.written.append(path)
        return path.name if personal else "", path.name if optimizer_state else ""

    def flush(self) -> None:
        """Wait until a phase's files would survive a power failure, since a checkpoint will count on them."""
        # The waits of several files overlap, and a disk serves them together.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_durable, self.written))
        self.written.clear()
        self.phase += 1

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Delete files of finished rounds that no checkpoint, no prompts and nothing current refers to."""
        used = set(files_of(*current).values())
        for path in [*self.run.glob("checkpoints/*.safetensors"), *self.run.glob("*.safetensors")]:
            with suppress(UserError):  # a damaged file refers to none
                used |= set(read_tensors(path, None)[1].get("files", {}).values())
        for path in self.folder.glob("*.safetensors"):
            is_finished = finished is None or round_and_phase(path)[0] < finished
            if path.name not in used and is_finished:
                path.unlink(missing_ok=True)


def are_at_sites(*states: Mapping[int, State]) -> bool:
    """Whether some of these states are not here but at the clients' own sites."""
    return any(isinstance(each, StatesOnDisk) and each.folder is None for each in states)


def files_of(*states: Mapping[int, State]) -> dict[int, str]:
    """Return the file of each client that has one."""
    files: dict[int, str] = {}
    for each in states:
        files.update(each.files if isinstance(each, StatesOnDisk) else {})
    return files


def with_stored(states: Mapping[int, State], stored: Mapping[int, StoredState]) -> Mapping[int, State]:
    """The states with what :meth:`ClientStore.keep` returned for some clients; where that is empty, they stay."""
    new: dict[int, Any] = {client: each for client, each in stored.items() if each}
    if isinstance(states, StatesOnDisk):
        return replace(states, files={**states.files, **new})
    return {**states, **new}


def restored(states: Mapping[int, State], before: Mapping[int, State], clients: Iterable[int]) -> Mapping[int, State]:
    """Return the states in which some clients have what they had before."""
    ids = set(clients)
    # Of states on disk the names of the files are exchanged, so none of them is read.
    now: Mapping[int, Any] = files_of(states) or states
    earlier: Mapping[int, Any] = files_of(before) or before
    values = {client: value for client, value in now.items() if client not in ids}
    values |= {client: earlier[client] for client in sorted(ids) if client in earlier}
    return replace(states, files=values) if isinstance(states, StatesOnDisk) else values


def round_and_phase(path: Path) -> tuple[int, int]:
    """Return in which round and in which phase of its process a client's file was written, from its name."""
    _, round, phase = path.stem.split("-")
    return int(round), int(phase)
