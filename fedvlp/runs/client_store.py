"""Storage of the tensors that stay on clients between rounds: in memory, or in one file per client."""

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
"""The tensors, or the name of their file; empty if there are none."""


@dataclass(frozen=True, eq=False)
class StatesOnDisk(Mapping[int, State]):
    """States of clients in ``files``, each read on access.

    ``group`` is ``personal`` or ``optimizer``. Without a ``folder`` the files stay at the clients' sites.
    """

    folder: Path | None
    group: str
    files: Mapping[int, str]

    def __getitem__(self, client: int) -> State:
        """Read the state of a client; empty if it is at the client's site."""
        if self.folder is None:
            return {}
        return strip_prefix(read_tensors(self.folder / self.files[client], f"{self.group}/")[0], self.group)

    def __iter__(self) -> Iterator[int]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __contains__(self, client: object) -> bool:
        # The default of Mapping would read the file.
        return client in self.files

    def check(self) -> None:
        """Raise UserError if a file is missing, damaged or no client file."""
        if self.folder is None:
            return
        for name in set(self.files.values()):
            check_header(self.folder / name, read_tensors(self.folder / name)[1], "client")


class ClientStore:
    """Storage of the clients' states between rounds in memory, so that checkpoints contain them."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Adopt the states of a group, ``personal`` or ``optimizer``; raise UserError if they are stored elsewhere."""
        return dict(states)

    def save(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Store both states of a client after a phase, and return the entries for the run state."""
        return personal, optimizer_state

    def flush(self) -> None:
        """Ensure that the states stored in a phase survive a power failure."""

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Delete states that neither a checkpoint nor a ``current`` state refers to.

        Only states of ``finished`` rounds are deleted, because other processes may already store states of the next
        round. With None, before the first round, the remains of an interrupted run are deleted.
        """


class StoreAtSites(ClientStore):
    """Storage of the names of personal states; the states themselves stay at the sites."""

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Adopt the names of the states."""
        if states and not are_at_sites(states):
            raise UserError("The run to resume is a simulation, whose tensors are not at sites. Start from scratch.")
        return StatesOnDisk(None, group, state_files(states))


class DiskStore(ClientStore):
    """Storage in one file per client state, in a run folder that all processes share.

    Files never change: a client's next state is a new file, so that older checkpoints stay valid.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / FOLDER
        # A resumed run continues counting after the existing files, so that it never overwrites one.
        self.phase = 1 + max((round_and_phase(path)[1] for path in self.folder.glob("*.safetensors")), default=-1)
        self.written: list[Path] = []

    def open(self, states: Mapping[int, State], group: str) -> Mapping[int, State]:
        """Adopt the files of the states."""
        if isinstance(states, StatesOnDisk) or not states:
            return StatesOnDisk(self.folder, group, state_files(states))
        raise UserError(
            "The run to resume stores the clients' tensors in its checkpoint, not in files. Set personal_on_disk to "
            "false, or start from scratch."
        )

    def save(self, round: int, client: int, personal: State, optimizer_state: State) -> tuple[StoredState, StoredState]:
        """Write both states of a client to a file, and return its name for each non-empty state."""
        if not personal and not optimizer_state:
            return "", ""
        path = self.folder / f"{client:06d}-{round:05d}-{self.phase}.safetensors"
        tensors = add_prefix(personal, "personal") | add_prefix(optimizer_state, "optimizer")
        write_tensors(path, tensors, {"kind": "client"}, is_durable=False)
        self.written.append(path)
        return path.name if personal else "", path.name if optimizer_state else ""

    def flush(self) -> None:
        """Wait until the files of a phase survive a power failure, because a checkpoint will refer to them."""
        # Waiting in parallel lets the disk serve several files at once.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_durable, self.written))
        self.written.clear()
        self.phase += 1

    def remove_unused(self, finished: int | None, current: Sequence[Mapping[int, State]]) -> None:
        """Delete files of finished rounds that no checkpoint, prompts or current state refers to."""
        used = set(state_files(*current).values())
        for path in [*self.run.glob("checkpoints/*.safetensors"), *self.run.glob("*.safetensors")]:
            with suppress(UserError):  # a damaged file has no references
                used |= set(read_tensors(path, None)[1].get("files", {}).values())
        for path in self.folder.glob("*.safetensors"):
            is_finished = finished is None or round_and_phase(path)[0] < finished
            if path.name not in used and is_finished:
                path.unlink(missing_ok=True)


def are_at_sites(*states: Mapping[int, State]) -> bool:
    """Check whether any of the states are stored at the clients' sites."""
    return any(isinstance(each, StatesOnDisk) and each.folder is None for each in states)


def state_files(*states: Mapping[int, State]) -> dict[int, str]:
    """List the file of each client that has one."""
    files: dict[int, str] = {}
    for each in states:
        files.update(each.files if isinstance(each, StatesOnDisk) else {})
    return files


def update_states(states: Mapping[int, State], stored: Mapping[int, StoredState]) -> Mapping[int, State]:
    """Replace the states of some clients by non-empty results of :meth:`ClientStore.save`."""
    new: dict[int, Any] = {client: state for client, state in stored.items() if state}
    if isinstance(states, StatesOnDisk):
        return replace(states, files={**states.files, **new})
    return {**states, **new}


def reset_states(states: Mapping[int, State], old: Mapping[int, State], clients: Iterable[int]) -> Mapping[int, State]:
    """Reset the states of some clients to earlier states."""
    ids = set(clients)
    # For states on disk, exchange the file names without reading the files.
    current: Mapping[int, Any] = state_files(states) or states
    earlier: Mapping[int, Any] = state_files(old) or old
    values = {client: value for client, value in current.items() if client not in ids}
    values |= {client: earlier[client] for client in sorted(ids) if client in earlier}
    return replace(states, files=values) if isinstance(states, StatesOnDisk) else values


def round_and_phase(path: Path) -> tuple[int, int]:
    """Parse the round and the phase counter from the name of a client's file."""
    _, round, phase = path.stem.split("-")
    return int(round), int(phase)
