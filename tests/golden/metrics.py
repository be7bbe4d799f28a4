"""Golden metrics: losses and accuracies of a short run of each method's config, stored in ``metrics.csv``.

After an intended change, ``python -m tests.golden.metrics promptfl trip`` measures these configs again. Without names,
it measures all configs. The commit message states what changed and why.
"""

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.state import RunState
from fedvlp.utils.config_files import configs_folder
from tests.helpers.configs import METHODS, supports_one_label

FILE = Path(__file__).with_name("metrics.csv")

ROUNDS = 2
ARGUMENTS = (
    "--data.num_classes=12",
    "--data.held_out=[pixel,emoji,colour]",
    "--data.batch_size=8",
    "--data.shots=1",
    "--data.validation_fraction=0.25",
    "--model.clip.name=fedvlp-small",
    f"--trainer.rounds={ROUNDS}",
    "--trainer.local.epochs=1",
    "--trainer.local.steps=2",
    "--trainer.clients.cohort_size=null",
    f"--trainer.evaluate_every={ROUNDS}",
    "--trainer.runtime.default_callbacks=false",
    "--trainer.accelerator=cpu",
)
"""Two steps per client and round: enough to detect a changed loss, rate, term or aggregation rule."""

COLUMNS = ("config", "loss_1", "loss_2", "norm", "validation", "held_out")
TOLERANCES: Mapping[str, float] = {"loss_1": 1e-4, "loss_2": 1e-4, "norm": 1e-4}
"""Relative to the value, or to 1 if it is smaller. Results of AVX2 and AVX-512 differ by less than 1e-6."""

POINTS = 2.0
"""Allowed difference of an accuracy, from one validation image that lies between two classes."""

Line = dict[str, str]


def measure(config: str, folder: Path) -> Line:
    """Train a config and return its line.

    Args:
        config: Name of a method's config.
        folder: Parent of the run folder.
    """
    method = f"--config={configs_folder() / 'methods' / config}.yaml"
    data = "--data=IconDomains" if supports_one_label(config) else "--data=IconScenes"
    given = [method, data, *ARGUMENTS, f"--trainer.default_root_dir={folder}"]
    run = FederationCLI(run=False, args=given, save_config_callback=None)
    server = run.trainer.fit(run.model, run.datamodule)
    state: RunState = run.trainer.run_state
    scores = state.history[-1] if state.history else run.trainer.evaluate(run.model, server.deployed, {})
    line = {"config": config, "loss_1": "", "loss_2": "", "norm": f"{_norm(server.deployed):.7g}"}
    for number, row in enumerate(state.history, start=1):
        line[f"loss_{number}"] = _loss(row)
    return line | {role: f"{scores[role]:.4f}" for role in ("validation", "held_out")}


def _loss(row: Mapping[str, float]) -> str:
    """Format a round's mean loss over clients and phases, or an empty string for methods without a loss."""
    losses = [value for name, value in row.items() if name.endswith("/loss")]
    return f"{statistics.fmean(losses):.7g}" if losses else ""


def _norm(tensors: Mapping[str, torch.Tensor]) -> float:
    """Compute the joint norm of all deployed tensors."""
    squares = [value.double().square().sum().item() for value in tensors.values()]
    return float(sum(squares) ** 0.5)


def stored() -> dict[str, Line]:
    """Read the stored lines by config."""
    with open(FILE, newline="", encoding="utf-8") as file:
        return {line["config"]: line for line in csv.DictReader(file)}


def differences(line: Line, golden: Line) -> list[str]:
    """List the columns where a line differs from the stored line by more than the tolerance."""
    found = []
    for name in COLUMNS[1:]:
        if not _is_close(name, line[name], golden[name]):
            found.append(f"{name}: {line[name] or 'none'}, stored {golden[name] or 'none'}")
    return found


def _is_close(name: str, value: str, golden: str) -> bool:
    if not (value and golden):
        return value == golden
    allowed = TOLERANCES[name] * max(1.0, abs(float(golden))) if name in TOLERANCES else POINTS
    return abs(float(value) - float(golden)) <= allowed


def write(lines: Sequence[Line]) -> None:
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    with TemporaryDirectory(prefix="fedvlp-golden-") as temporary:
        lines = stored() | {config: measure(config, Path(temporary)) for config in sys.argv[1:] or METHODS}
    write([lines[config] for config in METHODS if config in lines])
