"""Where the tensors that stay on the clients lie between rounds: in memory, or in one file for each client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from fedvlp.core.state import State, add_prefix
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import check_header, make_durable, read_group, read_header, read_tensors, write_tensors

FOLDER = "clients"

Value = TypeVar("Value")

StoredState = State | str
"""Tensors themselves, or the name of the file that holds them; empty where there is nothing to keep."""


@runtime_checkable
class ClientStore(Protocol):
    """Keeps what stays on the clients from one round to the next."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Takes over the states that a run continues from.

        Args:
            states: the states by client id.
            group: what they are, ``personal`` or ``optimizer``.
        """
        ...

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Stores both states of one client after a phase, and returns what the run state has to hold of them."""
        ...

    def flush(self) -> None:
        """Makes what was stored in a phase survive a power failure."""
        ...

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Deletes what no checkpoint and nothing current refers to.

        Args:
            finished: number of finished rounds, since other processes may be storing states of the next; None before
                the first, when nobody writes and all that an interrupted run left can go.
            current: states that the run continues from.
        """
        ...


@dataclass(frozen=True, eq=False)
class StatesOnDisk(Mapping[int, State]):
    """States of clients in files, each read when it is asked for.

    Attributes:
        folder: where the files are; None where they stay at the clients' own sites, and all that is known are names.
        group: which of a file's tensors these are, ``personal`` or ``optimizer``.
        files: name of the file by client id.
    """

    folder: Path | None
    group: str
    files: Mapping[int, str]

    def __getitem__(self, client: int) -> State:
        """Reads the state of a client; nothing of one that is at its site."""
        if self.folder is None:
            return {}
        return read_group(self.folder / self.files[client], self.group)

    def __iter__(self) -> Iterator[int]:
        """Goes through the clients' ids."""
        return iter(self.files)

    def __len__(self) -> int:
        """Counts the clients."""
        return len(self.files)

    def __contains__(self, client: object) -> bool:
        """Whether a client has a state; no file is read for that."""
        return client in self.files

    def checked(self) -> StatesOnDisk:
        """Returns the same.

        Raises:
            UserError: if a file is missing, damaged or of another kind.
        """
        if self.folder is None:
            return self
        for name in set(self.files.values()):
            check_header(self.folder / name, read_tensors(self.folder / name)[1], "client")
        return self


class StoreAtSites:
    """Keeps the names under which sites find what stays on them; the states themselves never come here."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Returns the names.

        Raises:
            UserError: if the run that is continued was no run of sites.
        """
        if states and not are_at_sites(states):
            raise UserError(
                "The run that is to go on has what stays on its clients in its folder, as a simulation has, and not at "
                "sites. Start anew."
            )
        return StatesOnDisk(None, group, files_of(states))

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Is never called: sites keep what is theirs."""
        raise RuntimeError("What stays on a site is kept there.")

    def flush(self) -> None:
        """Does nothing."""

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Does nothing."""


class MemoryStore:
    """Keeps the states of all clients in memory; checkpoints hold them."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Returns the states, read into memory."""
        return dict(states)

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Returns both states."""
        return personal, optimizer_state

    def flush(self) -> None:
        """Does nothing."""

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Does nothing."""


class DiskStore:
    """Writes the states of a client to a file of its own, which is never changed.

    What a client keeps later is another file, so that an older checkpoint still finds what it refers to.

    Args:
        run: the run's folder; every process must see the same one.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / FOLDER
        self.phase = 1 + max((round_and_phase(path)[1] for path in self.folder.glob("*.safetensors")), default=-1)
        self.written: list[Path] = []

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Returns the states as files.

        Raises:
            UserError: if the run that is continued kept them in its checkpoints.
        """
        if isinstance(states, StatesOnDisk) or not states:
            return StatesOnDisk(self.folder, group, files_of(states))
        raise UserError(
            "The run that is to go on has what stays on its clients in its checkpoint, not in files. Set "
            "personal_on_disk to false, or start anew."
        )

    def keep(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Writes both states of a client and returns the file's name for each that is not empty."""
        if not personal and not optimizer_state:
            return "", ""
        path = self.folder / f"{client:06d}-{round:05d}-{self.phase}.safetensors"
        tensors = add_prefix(personal, "personal") | add_prefix(optimizer_state, "optimizer")
        write_tensors(path, tensors, {"kind": "client"}, is_durable=False)
        self.written.append(path)
        return path.name if personal else "", path.name if optimizer_state else ""

    def flush(self) -> None:
        """Waits until a phase's files would survive a power failure, since a checkpoint will count on them."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_durable, self.written))
        self.written.clear()
        self.phase += 1

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Deletes files of finished rounds that no checkpoint, no prompts and nothing current refers to."""
        used = set(files_of(*current).values())
        for path in [*self.run.glob("checkpoints/*.safetensors"), *self.run.glob("*.safetensors")]:
            used |= _files_referred_to(path)
        for path in self.folder.glob("*.safetensors"):
            is_finished = finished is None or round_and_phase(path)[0] < finished
            if path.name not in used and is_finished:
                path.unlink(missing_ok=True)
        if finished is None:  # nobody writes yet, so a temporary file is what a killed process left
            for path in self.folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)


def are_at_sites(*states: Mapping[int, State]) -> bool:
    """Whether some of these states are not here but at the clients' own sites."""
    return any(isinstance(each, StatesOnDisk) and each.folder is None for each in states)


def files_of(*states: Mapping[int, State]) -> dict[int, str]:
    """Returns the file of each client that has one."""
    found: dict[int, str] = {}
    for each in states:
        if isinstance(each, StatesOnDisk):
            found.update(each.files)
    return found


def with_stored(states: Mapping[int, State], stored: Mapping[int, StoredState]) -> Mapping[int, State]:
    """Returns the states with those of some clients replaced; an empty one replaces nothing.

    Args:
        states: the states by client id, in memory or on disk.
        stored: what :meth:`ClientStore.keep` returned for some of the clients.
    """
    new = {client: each for client, each in stored.items() if each}
    if isinstance(states, StatesOnDisk):
        names = {client: str(name) for client, name in new.items()}
        return replace(states, files={**states.files, **names})
    tensors = {client: state for client, state in new.items() if isinstance(state, dict)}
    return {**states, **tensors}


def restored(states: Mapping[int, State], before: Mapping[int, State], clients: Iterable[int]) -> Mapping[int, State]:
    """Returns the states in which some clients have what they had before."""
    ids = sorted(clients)
    if not ids:
        return states
    if isinstance(states, StatesOnDisk):
        return replace(states, files=_restored(states.files, files_of(before), ids))
    return _restored(states, before, ids)


def _restored(now: Mapping[int, Value], before: Mapping[int, Value], ids: Sequence[int]) -> dict[int, Value]:
    kept = {client: value for client, value in now.items() if client not in ids}
    return kept | {client: before[client] for client in ids if client in before}


def _files_referred_to(path: Path) -> set[str]:
    """Returns the clients' files that a checkpoint or prompts file names; none if it is damaged."""
    try:
        header = read_header(path)
        check_header(path, header, "prompts", "checkpoint")
        return set(header["files"].values())
    except UserError:
        return set()


def round_and_phase(path: Path) -> tuple[int, int]:
    """Returns in which round and in which phase of its process a client's file was written, from its name."""
    numbers = path.stem.split("-")[1:]
    return int(numbers[0]), int(numbers[1])
