"""Promises of a federation: equal results, loggers that may fail, robust aggregators, and sites over TLS."""

from __future__ import annotations

import math
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.faults.bench import Bench, NotBuiltError, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.rows.processes import ranks
from fedvlp.utils.tensor_files import read_tensors

DISPERSED = (
    "--data.partition=Dispersed",
    "--data.partition.num_clients=9",
    "--data.held_out=null",
    "--data.test_fraction=0.2",
    "--trainer.rounds=3",
)
"""Options of a run with nine clients."""


@fault(
    injected="one run made twice, with 2 image readers in place of none, and by 2 processes in place of one",
    must="all equal",
    peers="NVFlare 2.8 adds in the order of arrival, and says that two clients or more do not give the same bits "
    "again.",
)
def repeated_run(bench: Bench) -> None:
    """Run TRIP, and PromptFL with new image crops in each round."""
    expected, _ = bench.shop.unbroken("trip")
    bench.expect_success(bench.fit(method="trip"), "the second run")
    bench.expect_same(bench.run(), expected, "the second run")
    crops = "--data.augmentation=crop_flip"
    cropped, _ = bench.shop.unbroken("promptfl", crops)
    bench.expect_success(bench.fit(crops, "--data.num_workers=2", "--trainer.name=readers"), "with readers")
    bench.expect_same(bench.run("readers"), cropped, "the run with 2 readers")
    for running in ranks(bench, "--trainer.name=ranks", method="trip"):
        bench.expect_success(bench.finish(running), "one of 2 processes")
    bench.expect_same(bench.run("ranks"), expected, "the run of 2 processes")
    bench.note("3 runs, each equal to the one that it repeats")


@fault(
    injected="a logger whose service goes away in round 2; Weights & Biases without network",
    must="said once, and the run is equal to one without a logger",
    peers="Flower 1.41 has no loggers of its own. NVFlare 2.8 has receivers for three services.",
)
def logger_fails(bench: Bench) -> None:
    """Use a logger that raises, and a service that does not answer."""
    expected, _ = bench.shop.unbroken()
    parting = bench.fit("--trainer.logger=benchmarks.faults.clients.PartingLogger")
    bench.expect_success(parting, "with a logger that fails")
    count = parting.output.count("PartingLogger failed and is disabled")
    bench.expect(count == 1, f"reported {count} times")
    bench.expect_same(bench.run(), expected, "the run with a logger that fails")
    away = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "5"}
    away |= {"WANDB_SILENT": "true", "WANDB_DIR": str(bench.folder)}
    wandb = bench.fit(
        "--trainer.logger=lightning.pytorch.loggers.WandbLogger", "--trainer.name=wandb", environment=away
    )
    bench.expect_success(wandb, "with Weights & Biases and no network")
    bench.expect_same(bench.run("wandb"), expected, "the run with Weights & Biases")
    line = next((line for line in wandb.output.splitlines() if "is disabled" in line), "no message")
    bench.note(f"the first is left out after one line; the second: {quote(line, 100)}")


@fault(
    injected="a server and three sites over TLS: one trusts another authority, and one has a key that nobody "
    "registered; in another run one is killed and comes back",
    must="refused, refused, and both runs are completed",
    peers="Flower 1.41 and NVFlare 2.8 are built for this, with certificates and tests; Flower tests a client that "
    "comes back.",
)
def deployment(bench: Bench) -> None:
    """Start real processes of Flower on 127.0.0.1 with the script of the study of real sites."""
    if find_spec("flwr") is None:
        raise NotBuiltError("it needs the extra flower, which this environment does not have")
    script = ("-m", "experiments.sites.faults", "--only", "wrong_keys", "site_killed")
    finished = bench.program(sys.executable, *script, limit=1200)
    rows = {line.split("|")[1].strip(): line for line in finished.output.splitlines() if line.startswith("| ")}
    for name in ("wrong_keys", "site_killed"):
        row = rows.get(name, "")
        bench.expect("finished:completed" in row, f"{name}: the run was not completed: {quote(row)}")
        bench.expect("processes left behind: 0" in row, f"{name}: processes were left behind")
    codes = re.findall(r"(?:unregistered: exit code|other authority:) (-?\d+)", rows.get("wrong_keys", ""))
    bench.expect(len(codes) == 2 and "0" not in codes, f"exit codes of the two that must be refused: {codes}")
    bench.note(
        f"both refused, with exit codes {' and '.join(codes)}; the one that was killed came back; 2 of 2 completed"
    )
    bench.lose("the updates of rounds in which a site was away")


@fault(
    injected="2 of 9 clients turn their updates round and lengthen them tenfold, or send them 1,000 times as long, "
    "against three rules",
    must="the prompts move no more than twice as far as those of honest clients",
    peers="Flower 1.41 has Krum, Multi-Krum, Bulyan, median and trimmed mean, and averages NaN in its mean.",
)
def hostile_clients(bench: Bench) -> None:
    """Test all attacks against all aggregators, and against the mean as a control."""
    honest, _ = bench.shop.unbroken("promptfl", *DISPERSED)
    start, _ = bench.shop.unbroken("promptfl", *DISPERSED, "--trainer.rounds=1", "--model.optimizer.lr=1e-30")
    usual = _distance(honest, start)
    attacks = {
        "SignFlip": ("--trainer.clients.attack.scale=10",),
        "Scaling": ("--trainer.clients.attack.factor=1000",),
    }
    rules = {"CoordinateMedian": (), "TrimmedMean": ("--trainer.server.aggregation.share=0.29",)}
    rules |= {"Krum": ("--trainer.server.aggregation.byzantine=2",)}
    for attack, options in attacks.items():
        hostile = (f"--trainer.clients.attack={attack}", "--trainer.clients.attack.clients=2", *options)
        moved = {"mean": _attacked(bench, start, *hostile)}
        for rule, more in rules.items():
            moved[rule] = _attacked(bench, start, *hostile, f"--trainer.server.aggregation={rule}", *more)
            bench.expect(moved[rule] <= 2 * usual, f"{attack}, {rule}: moved {moved[rule] / usual:.1f} times as far")
        told = ", ".join(f"{rule} {distance / usual:.2g}" for rule, distance in moved.items())
        bench.note(f"{attack}, times as far as honest: {told}")


def _attacked(bench: Bench, start: Path, *options: str) -> float:
    """Compute how far the prompts move in a run with hostile clients."""
    finished = bench.fit(*DISPERSED, *options)
    return _distance(bench.run(), start) if bench.expect_success(finished, " ".join(options[:1])) else float("nan")


def _distance(one: Path, other: Path) -> float:
    first = read_tensors(one / "prompts.safetensors")[0]
    second = read_tensors(other / "prompts.safetensors")[0]
    squares = [(first[name] - second[name]).double().square().sum().item() for name in first]
    return math.sqrt(sum(squares))
