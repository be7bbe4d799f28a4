"""What stays on the clients between rounds: in memory, or in one file a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from fedvlp.core.state import State
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import make_durable, read_group, read_header, write_tensors

FOLDER = "clients"
Kept = State | str


@dataclass(frozen=True, eq=False)
class StatesOnDisk(Mapping[int, State]):
    """States of clients in files, each read when it is asked for.

    Attributes:
        folder: where the files are.
        group: which of a file's tensors these are, ``personal`` or ``optimizer``.
        files: name of the file by client id.
    """

    folder: Path
    group: str
    files: Mapping[int, str]

    def __getitem__(self, client: int) -> State:
        """Reads the state of a client."""
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
            UserError: if a file is missing or damaged.
        """
        for name in set(self.files.values()):
            read_header(self.folder / name)
        return self


@dataclass(frozen=True)
class InMemory:
    """Lets states stay where they are."""

    def begin(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Returns the states to go on from, in memory."""
        return {client: states[client] for client in states}

    def keep(self, round: int, client: int, personal: State, optimizer: State) -> tuple[Kept, Kept]:
        """Returns what is to be known of both states of a client; empty where there is nothing."""
        return personal, optimizer

    def finish(self) -> None:
        """Does nothing."""

    def tidy(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Does nothing."""


class OnDisk:
    """Writes the states of a client to a file of its own, which is never changed.

    What a client keeps later is another file, so that an older checkpoint still finds what it knows; files that nobody
    knows any more are deleted after each round.

    Args:
        run: the run's folder; every process must see the same one.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / FOLDER
        self.number = max((_place(path)[1] for path in self.folder.glob("*.safetensors")), default=-1) + 1
        self.written: list[Path] = []

    def begin(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Returns the states to go on from, on disk."""
        if isinstance(states, StatesOnDisk) or not states:
            return StatesOnDisk(self.folder, group, files_of(states))
        raise UserError(
            "The run that is to go on has what stays on its clients in its checkpoint, not in files. Set "
            "personal_on_disk to false, or start anew."
        )

    def keep(self, round: int, client: int, personal: State, optimizer: State) -> tuple[Kept, Kept]:
        """Writes both states of a client and returns the file's name for each that is not empty."""
        if not personal and not optimizer:
            return "", ""
        groups = {"personal": personal, "optimizer": optimizer}
        tensors = {f"{group}/{name}": value for group, state in groups.items() for name, value in state.items()}
        path = self.folder / f"{client:06d}-{round:05d}-{self.number}.safetensors"
        write_tensors(path, tensors, {"kind": "client"}, is_durable=False)
        self.written.append(path)
        return path.name if personal else "", path.name if optimizer else ""

    def finish(self) -> None:
        """Waits until a phase's files would survive a power failure, since a checkpoint will count on them."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_durable, self.written))
        self.written.clear()
        self.number += 1

    def tidy(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Deletes the files of finished rounds that no checkpoint, no prompts and nothing current refers to.

        Args:
            finished: number of finished rounds, since other processes may be writing files of the next; None before
                the first, when nobody writes and all that an interrupted run left can go.
            current: states that the run goes on from.
        """
        used = set(files_of(*current).values())
        for path in [*self.run.glob("checkpoints/*.safetensors"), *self.run.glob("*.safetensors")]:
            used |= _referred(path)
        for path in self.folder.glob("*.safetensors"):
            if path.name not in used and (finished is None or _place(path)[0] < finished):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp") if finished is None else ():
            path.unlink(missing_ok=True)


def files_of(*states: Mapping[int, State]) -> dict[int, str]:
    """Returns the file of each client that has one."""
    return {client: name for each in states if isinstance(each, StatesOnDisk) for client, name in each.files.items()}


def with_kept(states: Mapping[int, State], kept: Mapping[int, Kept]) -> Mapping[int, State]:
    """Returns the states with those of some clients replaced, where there is something to replace them by."""
    new = {client: each for client, each in kept.items() if each}
    if isinstance(states, StatesOnDisk):
        return replace(states, files={**states.files, **{client: str(name) for client, name in new.items()}})
    return {**states, **{client: state for client, state in new.items() if isinstance(state, dict)}}


def _referred(path: Path) -> set[str]:
    """Returns the files that a checkpoint or prompts refer to; none if they are damaged."""
    try:
        return set(read_header(path).get("files", {}).values())
    except UserError:
        return set()


def _place(path: Path) -> tuple[int, int]:
    """Returns the round and the number in a file's name."""
    _, round, number = path.stem.split("-")
    return int(round), int(number)
