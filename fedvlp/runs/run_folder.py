"""The folder of a run: its name, who trains in it, its files and checkpoints, and the method that they are of."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import is_locked, locked, remove_temporaries
from fedvlp.utils.tensor_files import check_header, read_tensors

LOCKED = "run"
"""What is locked in place of a run folder."""
WAITING = "waiting.txt"
"""In the folder of runs: for whom a server of sites waits, written anew each second while it does."""
FILES = (
    *("summary.json", "config.yaml", "metrics.csv", "splits.json", "confusion.csv", "events.jsonl"),
    *("sites.json", "sweep.json", "captions.json", "wandb.json"),
)
"""What runs and sweeps consist of, beside safetensors files."""


def new_run_folder(parent: Path) -> Path:
    """Make and return ``parent/<time>``, which did not exist before."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    # Several runs may start in one second; all but one of them fail to make the folder, and count up.
    for attempt in count():
        folder = parent / (stamp if attempt == 0 else f"{stamp}_{attempt}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


@contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Keep a run folder for this process while the block runs, and remove what killed processes left there.

    The claim ends with the process. Raises UserError if another process trains there, and OSError on a read-only disk.
    """
    with ExitStack() as claim:
        try:
            claim.enter_context(locked(run / LOCKED, wait=False))
        except BlockingIOError as error:
            raise UserError(f"{run} is being trained by another process. Wait for its end, or stop it.") from error
        # Only who holds the claim may do so: another process might be writing one of these files.
        for folder in (run, run / "checkpoints", run / "clients"):
            remove_temporaries(folder)
        yield


def is_claimed(run: Path) -> bool:
    """Whether a process trains this run."""
    return is_locked(run / LOCKED)


def files_of_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield some paths, and the files below them of which runs consist."""
    for path in paths:
        yield path
        yield from (file for file in path.rglob("*") if file.name in FILES or file.suffix == ".safetensors")


def find_checkpoints(where: Path) -> list[Path]:
    """Return the checkpoints in a run folder, or in the newest run below a folder, newest first."""
    # Folders are named after the time and files after the padded round, so names sort as these do.
    runs = [where] if (where / "checkpoints").is_dir() else sorted(where.glob("*/"), reverse=True)
    for run in runs:
        if checkpoints := sorted((run / "checkpoints").glob("round-*.safetensors"), reverse=True):
            return checkpoints
    return []


def checkpoint_file(run: Path, round: int) -> Path:
    """Return the path of the checkpoint after so many rounds."""
    return run / "checkpoints" / f"round-{round:05d}.safetensors"


def run_of(trained: Path) -> Path:
    """Return the run folder of trained tensors, from a file in it or a folder above it."""
    if trained.is_file():
        return trained.parent.parent if trained.parent.name == "checkpoints" else trained.parent
    checkpoints = find_checkpoints(trained)
    return checkpoints[0].parent.parent if checkpoints else trained


def describe_choice(where: Path) -> str:
    """State in a line which run a folder of runs stands for; empty if the path names a run or a file."""
    run = run_of(where)
    return f"newest run in {where}: {run}\n" if where.is_dir() and run != where else ""


def read_model(path: Path) -> dict[str, Any]:
    """Read the description of the method in prompts or a checkpoint, but no tensor; raise UserError for other files."""
    header = read_tensors(path, None)[1]
    kind = check_header(path, header, "prompts", "checkpoint")
    try:
        model: dict[str, Any] = header["model"] if kind == "prompts" else header["description"]["model"]
        is_whole = isinstance(model["class_path"], str) and isinstance(model["init_args"]["clip"], dict)
    except (KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise UserError(f"{path} describes no method with its CLIP. Pass a file that a run wrote.")
    return model
