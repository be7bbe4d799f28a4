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
    injected="one run repeated, also with 2 image readers instead of none, and with 2 processes instead of one",
    must="all are equal",
    peers="NVFlare 2.8 adds updates in order of arrival, and states that results with two or more clients are "
    "not bit-for-bit reproducible.",
)
def repeated_run(bench: Bench) -> None:
    """Run TRIP, and PromptFL with new image crops in each round."""
    expected, _ = bench.shop.uninterrupted("trip")
    bench.expect_success(bench.fit(method="trip"), "the second run")
    bench.expect_same(bench.run(), expected, "the second run")
    crops = "--data.augmentation=crop_flip"
    cropped, _ = bench.shop.uninterrupted("promptfl", crops)
    bench.expect_success(bench.fit(crops, "--data.num_workers=2", "--trainer.name=readers"), "with readers")
    bench.expect_same(bench.run("readers"), cropped, "the run with 2 readers")
    for running in ranks(bench, "--trainer.name=ranks", method="trip"):
        bench.expect_success(bench.finish(running), "one of 2 processes")
    bench.expect_same(bench.run("ranks"), expected, "the run of 2 processes")
    bench.note("3 runs, each equal to the run that it repeats")


@fault(
    injected="a logger that loses its service in round 2; Weights & Biases without a network",
    must="one message, and the run equals a run without a logger",
    peers="Flower 1.41 has no built-in loggers. NVFlare 2.8 has receivers for three services.",
)
def logger_fails(bench: Bench) -> None:
    """Use a logger that raises, and a service that does not answer."""
    expected, _ = bench.shop.uninterrupted()
    parting = bench.fit("--trainer.logger=benchmarks.faults.clients.PartingLogger")
    bench.expect_success(parting, "with a logger that fails")
    count = parting.output.count("PartingLogger failed and is disabled")
    bench.expect(count == 1, f"reported {count} times")
    bench.expect_same(bench.run(), expected, "the run with a logger that fails")
    unreachable = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "5"}
    unreachable |= {"WANDB_SILENT": "true", "WANDB_DIR": str(bench.folder)}
    wandb = bench.fit(
        "--trainer.logger=lightning.pytorch.loggers.WandbLogger", "--trainer.name=wandb", environment=unreachable
    )
    bench.expect_success(wandb, "with Weights & Biases and no network")
    bench.expect_same(bench.run("wandb"), expected, "the run with Weights & Biases")
    line = next((line for line in wandb.output.splitlines() if "is disabled" in line), "no message")
    bench.note(f"the first is disabled after one line; the second: {quote(line, 100)}")


@fault(
    injected="a server and three sites over TLS: one site trusts another authority, and one has an unregistered "
    "key; in another run a site is killed and returns",
    must="both sites are rejected, and both runs complete",
    peers="Flower 1.41 and NVFlare 2.8 are built for this, with certificates and tests; Flower tests a client "
    "that returns.",
)
def deployment(bench: Bench) -> None:
    """Start real processes of Flower on 127.0.0.1 with the script of the study of real sites."""
    if find_spec("flwr") is None:
        raise NotBuiltError("it needs the extra flower, which this environment does not have")
    script = ("-m", "experiments.sites.faults", "--only", "wrong_keys", "site_away")
    finished = bench.program(sys.executable, *script, limit=1200)
    rows = {line.split("|")[1].strip(): line for line in finished.output.splitlines() if line.startswith("| ")}
    for name in ("wrong_keys", "site_away"):
        row = rows.get(name, "")
        bench.expect("finished:completed" in row, f"{name}: the run was not completed: {quote(row)}")
        bench.expect("processes left behind: 0" in row, f"{name}: processes were left behind")
    codes = re.findall(r"(?:unregistered: exit code|other authority:) (-?\d+)", rows.get("wrong_keys", ""))
    bench.expect(len(codes) == 2 and "0" not in codes, f"exit codes of the two sites that must be rejected: {codes}")
    bench.note(f"both rejected, with exit codes {' and '.join(codes)}; the killed site returned; 2 of 2 completed")
    bench.lose("the updates of the rounds that a site missed")


@fault(
    injected="2 of 9 clients flip their updates and lengthen them tenfold, or send them 1,000 times as long, "
    "against three aggregators",
    must="the prompts move at most twice as far as with honest clients",
    peers="Flower 1.41 has Krum, Multi-Krum, Bulyan, median and trimmed mean, and its mean averages NaN.",
)
def hostile_clients(bench: Bench) -> None:
    """Test all attacks against all aggregators, and against the mean as a control."""
    honest, _ = bench.shop.uninterrupted("promptfl", *DISPERSED)
    start, _ = bench.shop.uninterrupted("promptfl", *DISPERSED, "--trainer.rounds=1", "--model.optimizer.lr=1e-30")
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
        distances = ", ".join(f"{rule} {distance / usual:.2g}" for rule, distance in moved.items())
        bench.note(f"{attack}, distance relative to honest clients: {distances}")


def _attacked(bench: Bench, start: Path, *options: str) -> float:
    """Compute how far the prompts move in a run with hostile clients."""
    finished = bench.fit(*DISPERSED, *options)
    return _distance(bench.run(), start) if bench.expect_success(finished, " ".join(options[:1])) else float("nan")


def _distance(one: Path, other: Path) -> float:
    first = read_tensors(one / "prompts.safetensors")[0]
    second = read_tensors(other / "prompts.safetensors")[0]
    squares = [(first[name] - second[name]).double().square().sum().item() for name in first]
    return math.sqrt(sum(squares))
