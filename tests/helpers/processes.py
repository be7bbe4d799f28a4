"""A federation of seven clients of different sizes, as a program that each of several processes runs."""

from __future__ import annotations

import sys
from pathlib import Path

from fedvlp.utils.tensor_files import write_tensors
from tests.helpers.toy_federation import Points, federation
from tests.runs.test_client_store import Personal, everything, quick


def finished(folder: Path, **options):
    """A finished run with personal tensors and optimizers that remember."""
    made = federation(folder, rounds=3, cohort_size=5, reset_optimizer=False, **quick(), **options)
    made.fit(Personal(), Points(clients=7))
    return made


if __name__ == "__main__":
    where, num_nodes = Path(sys.argv[1]), int(sys.argv[2])
    spread = {"devices": 2 // num_nodes, "num_nodes": num_nodes, "strategy": "ddp"}
    for on_disk in (False, True):
        run = finished(where / str(on_disk), personal_on_disk=on_disk, **spread)
        tensors, rows = everything(run.run_state)
        if run.is_global_zero:
            write_tensors(where / f"{on_disk}.safetensors", tensors, {"rows": rows})
