"""The folder of a run: its name, its lock, its files and checkpoints, and their method."""

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
"""Name of the lock of a run folder."""
WAITING = "waiting.txt"
"""File in the folder of runs with the sites that a server waits for; rewritten every second."""
FILES = (
    *("summary.json", "config.yaml", "metrics.csv", "splits.json", "confusion.csv", "events.jsonl"),
    *("sites.json", "sweep.json", "captions.json", "wandb.json"),
)
"""Files of runs and sweeps, in addition to safetensors files."""


def new_run_folder(parent: Path) -> Path:
    """Make a new folder ``parent/<time>``."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    # Several runs may start in the same second, so try the next number if the folder exists.
    for attempt in count():
        folder = parent / (stamp if attempt == 0 else f"{stamp}_{attempt}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


@contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Lock a run folder for this process during the block, and remove temporary files of killed processes.

    The lock ends with the process. Raises UserError if another process trains the run, and OSError on a read-only disk.
    """
    with ExitStack() as claim:
        try:
            claim.enter_context(locked(run / LOCKED, wait=False))
        except BlockingIOError as error:
            raise UserError(f"{run} is being trained by another process. Wait until it ends, or stop it.") from error
        # Only with the lock: otherwise another process might be writing one of these files.
        for folder in (run, run / "checkpoints", run / "clients"):
            remove_temporaries(folder)
        yield


def is_claimed(run: Path) -> bool:
    """Check whether a process trains the run."""
    return is_locked(run / LOCKED)


def list_run_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths, and all files of runs below them."""
    for path in paths:
        yield path
        yield from (file for file in path.rglob("*") if file.name in FILES or file.suffix == ".safetensors")


def find_checkpoints(where: Path) -> list[Path]:
    """List the checkpoints of a run folder, or of the newest run with any below a folder, newest first."""
    # Folders are named by time and files by zero-padded round, so sorting by name is sorting by age.
    runs = [where] if (where / "checkpoints").is_dir() else sorted(where.glob("*/"), reverse=True)
    for run in runs:
        if checkpoints := sorted((run / "checkpoints").glob("round-*.safetensors"), reverse=True):
            return checkpoints
    return []


def checkpoint_file(run: Path, round: int) -> Path:
    """Make the path of the checkpoint after a round."""
    return run / "checkpoints" / f"round-{round:05d}.safetensors"


def find_run_folder(trained: Path) -> Path:
    """Find the run folder of trained tensors, given a file in it or a folder above it."""
    if trained.is_file():
        return trained.parent.parent if trained.parent.name == "checkpoints" else trained.parent
    checkpoints = find_checkpoints(trained)
    return checkpoints[0].parent.parent if checkpoints else trained


def describe_choice(where: Path) -> str:
    """Name, in one line, the run chosen from a folder of runs; empty if the path is a run or a file."""
    run = find_run_folder(where)
    return f"newest run in {where}: {run}\n" if where.is_dir() and run != where else ""


def read_model(path: Path) -> dict[str, Any]:
    """Read the description of the method from prompts or a checkpoint; raise UserError for other files."""
    header = read_tensors(path, None)[1]
    kind = check_header(path, header, "prompts", "checkpoint")
    try:
        model: dict[str, Any] = header["model"] if kind == "prompts" else header["description"]["model"]
        is_complete = isinstance(model["class_path"], str) and isinstance(model["init_args"]["clip"], dict)
        is_complete = is_complete and 0.01 <= model.get("calibration_temperature", 1) <= 100
        thresholds = model.get("label_thresholds", [])
        is_complete = is_complete and all(0 <= value <= 1 for value in thresholds)
        is_complete = is_complete and len(thresholds) in (0, len(model["init_args"].get("class_names", [])) - 1)
    except (KeyError, TypeError):
        is_complete = False
    if not is_complete:
        raise UserError(f"{path} contains no description of a method and its CLIP. Pass a file written by a run.")
    return model
