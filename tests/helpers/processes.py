"""A program that trains a federation of seven clients of different sizes, run by several processes."""

import sys
from pathlib import Path

from fedvlp.utils.tensor_files import write_tensors
from tests.helpers.assertions import run_metrics, run_tensors
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks


def train_run(folder: Path, **options):
    """Train a federation with personal tensors and stateful optimizers."""
    made = federation(folder, rounds=3, cohort_size=5, reset_optimizer=False, **file_callbacks(), **options)
    made.fit(PersonalBias(), Points(clients=7))
    return made


def main(folder: Path, num_nodes: int) -> None:
    """Train in two processes on ``num_nodes`` nodes, once with client state in memory and once on disk."""
    spread = {"devices": 2 // num_nodes, "num_nodes": num_nodes, "strategy": "ddp"}
    for on_disk in (False, True):
        run = train_run(folder / str(on_disk), personal_on_disk=on_disk, **spread)
        tensors = run_tensors(run.run_state)
        if run.is_global_zero:
            write_tensors(folder / f"{on_disk}.safetensors", tensors, {"rows": run_metrics(run.run_state)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
