"""Equal results, random numbers, partitions, numbers that stay, loggers, rules, privacy, versions, deployment."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.faults.bench import Bench, NotBuiltError, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.options import EPSILON, PRIVATE_RULE
from benchmarks.faults.page import PROMISES
from benchmarks.faults.rows.checkpoints import SYSTEMS
from benchmarks.faults.rows.processes import ranks
from benchmarks.faults.runs import metrics
from benchmarks.faults.workshop import DOMAINS, IMAGES
from fedvlp import ByDomain, Dirichlet, Dispersed, DomainFolders, Shards
from fedvlp.utils.tensor_files import read_tensors

GOLDEN = {"trip": 1.5931, "plan": 1.0925, "diprompt": 6.5307, "fed_dpt": -0.1103, "adapt": 1.2967}
"""Mean loss over the clients of the fourth round of each system, with the tiny CLIP and the made-up images."""
TOLERANCE = 0.02
DELTA = 1e-5
DISPERSED = (
    "--data.partition=Dispersed",
    "--data.partition.num_clients=9",
    "--data.held_out=null",
    "--data.test_fraction=0.2",
    "--trainer.rounds=3",
)
"""Options of a run of nine clients."""


@fault(
    PROMISES,
    7,
    injected="one run made twice, with 2 image readers in place of none, and by 2 processes in place of one",
    must="all equal",
    peers="NVFlare 2.8 adds in the order of arrival, and says that two clients or more do not give the same bits "
    "again.",
)
def repeated_run(bench: Bench) -> None:
    """TRIP, and PromptFL with images that are cropped anew in each round."""
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
    PROMISES,
    8,
    injected="a callback draws from all global generators of random numbers, in a run whose clients are sampled",
    must="equal to a run without it",
    peers="Flower 1.41 samples by the global generator without a seed.",
)
def global_random_numbers(bench: Bench) -> None:
    """Draws at every step."""
    options = ("--trainer.clients.cohort_size=2", "--trainer.rounds=5")
    expected, _ = bench.shop.unbroken("trip", *options)
    draws = "--trainer.callbacks=benchmarks.faults.clients.DrawsEverywhere"
    bench.expect_success(bench.fit(*options, draws, method="trip"))
    if bench.expect_same(bench.run(), expected):
        bench.note("the same clients were sampled, and the runs are equal")


@fault(
    PROMISES,
    11,
    injected="images dealt out by each partition, twice with one seed and once with another",
    must="each image once, the held-out domain never in training, one hash for one seed",
    peers="Flower's data sets have 16 partitions and no domain that is held out.",
)
def partitions(bench: Bench) -> None:
    """Looks at the tables of splits."""
    kinds: dict[str, Any] = {"ByDomain": ByDomain(), "Dispersed": Dispersed(num_clients=6)}
    kinds |= {"Dirichlet": Dirichlet(num_clients=5, alpha=0.5), "Shards": Shards(num_clients=4)}
    held_out = f"domain {DOMAINS - 1}"
    for name, partition in kinds.items():
        made = [_split(bench, partition, held_out, seed) for seed in (0, 0, 1)]
        images = Counter(image for row in made[0].split_table() for image in row["images"])
        bench.expect(
            len(images) == DOMAINS * IMAGES, f"{name}: {len(images)} of {DOMAINS * IMAGES} images are dealt out"
        )
        bench.expect(max(images.values()) == 1, f"{name}: an image is dealt out twice")
        trained = [row for row in made[0].split_table() if row["role"] in ("train", "validation")]
        leaks = [image for row in trained for image in row["images"] if image.startswith(held_out)]
        bench.expect(not leaks and bool(trained), f"{name}: {len(leaks)} images of the held-out domain train")
        hashes = [data.split_hash for data in made]
        bench.expect(hashes[0] == hashes[1] != hashes[2], f"{name}: hashes do not follow the seed")
    bench.note(f"{len(kinds)} partitions: {DOMAINS * IMAGES} images once each, none of the held-out domain in training")


def _split(bench: Bench, partition: Any, held_out: str, seed: int) -> DomainFolders:
    data = DomainFolders(
        str(bench.shop.images), held_out=held_out, partition=partition, split_seed=seed, cache_dir=None
    )
    data.prepare_data()
    return data


@fault(
    PROMISES,
    12,
    injected="nothing: TRIP, PLAN, DiPrompT, Fed-DPT and ADAPT on small made-up images",
    must=f"the losses are those that are written down, within {TOLERANCE}",
    peers="FL4Health keeps such numbers for its examples, with a tolerance.",
)
def golden_numbers(bench: Bench) -> None:
    """Compares each system's loss with what it was."""
    for system in SYSTEMS:
        run, _ = bench.shop.unbroken(system, "--trainer.rounds=4", "--trainer.clients.cohort_size=3")
        row = metrics(run)[-1]
        losses = [float(value) for name, value in row.items() if name.startswith("client/") and name.endswith("/loss")]
        loss = sum(losses) / len(losses)
        bench.expect(abs(loss - GOLDEN[system]) <= TOLERANCE, f"{system}: {loss:.4f} in place of {GOLDEN[system]:.4f}")
        bench.note(f"{system} {loss:.4f}")


@fault(
    PROMISES,
    13,
    injected="a logger whose service goes away in round 2; Weights & Biases without network",
    must="said once, and the run is equal to one without a logger",
    peers="Flower 1.41 has no loggers of its own. NVFlare 2.8 has receivers for three services.",
)
def logger_fails(bench: Bench) -> None:
    """A logger that raises, and a service that nobody answers for."""
    expected, _ = bench.shop.unbroken()
    parting = bench.fit("--trainer.logger=benchmarks.faults.clients.PartingLogger")
    bench.expect_success(parting, "with a logger that fails")
    said = parting.output.count("PartingLogger failed and is left out")
    bench.expect(said == 1, f"said {said} times")
    bench.expect_same(bench.run(), expected, "the run with a logger that fails")
    away = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "5"}
    away |= {"WANDB_SILENT": "true", "WANDB_DIR": str(bench.folder)}
    wandb = bench.fit(
        "--trainer.logger=lightning.pytorch.loggers.WandbLogger", "--trainer.name=wandb", environment=away
    )
    bench.expect_success(wandb, "with Weights & Biases and no network")
    bench.expect_same(bench.run("wandb"), expected, "the run with Weights & Biases")
    line = next((line for line in wandb.output.splitlines() if "is left out" in line), "nothing said")
    bench.note(f"the first is left out after one line; the second: {quote(line, 100)}")


@fault(
    PROMISES,
    14,
    injected="a server and three sites over TLS: one trusts another authority, and one has a key that nobody "
    "registered; in another run one is killed and comes back",
    must="refused, refused, and both runs are completed",
    peers="Flower 1.41 and NVFlare 2.8 are built for this, with certificates and tests; Flower tests a client that "
    "comes back.",
)
def deployment(bench: Bench) -> None:
    """Real processes of Flower on 127.0.0.1, by the script of the study of real sites."""
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
    PROMISES,
    16,
    injected="2 of 9 clients turn their updates round and lengthen them tenfold, send them 1,000 times as long, or "
    "send NaN, against three rules",
    must="the prompts move no more than twice as far as those of honest clients",
    peers="Flower 1.41 has Krum, Multi-Krum, Bulyan, median and trimmed mean, and averages NaN in its mean.",
)
def hostile_clients(bench: Bench) -> None:
    """Every attack against every rule, and against the mean to see that it does harm."""
    honest, _ = bench.shop.unbroken("promptfl", *DISPERSED)
    start, _ = bench.shop.unbroken("promptfl", *DISPERSED, "--trainer.rounds=1", "--model.optimizer.lr=1e-30")
    usual = _distance(honest, start)
    attacks = {
        "SignFlip": ("--trainer.clients.attack.scale=10",),
        "Scaling": ("--trainer.clients.attack.factor=1000",),
        "benchmarks.faults.clients.NotANumber": (),
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
        bench.note(f"{attack.rpartition('.')[2]}, times as far as honest: {told}")


def _attacked(bench: Bench, start: Path, *options: str) -> float:
    """Returns how far the prompts moved in a run with hostile clients."""
    finished = bench.fit(*DISPERSED, *options)
    return _distance(bench.run(), start) if bench.expect_success(finished, " ".join(options[:1])) else float("nan")


def _distance(one: Path, other: Path) -> float:
    first = read_tensors(one / "prompts.safetensors")[0]
    second = read_tensors(other / "prompts.safetensors")[0]
    squares = [(first[name] - second[name]).double().square().sum().item() for name in first]
    return math.sqrt(sum(squares))


@fault(
    PROMISES,
    17,
    injected="privacy: the accounted epsilon of a run beside a slow reference and the exact bound; masks of a secure "
    "sum, with clients that drop out",
    must="equal to the reference and above the exact bound; masks cancel exactly",
    peers="Flower 1.41 has an accountant (new) and SecAgg+ for its older interface.",
)
def privacy(bench: Bench) -> None:
    """Makes a private run, and the test of masks."""
    noise = 4.0
    options = ("clip_norm=1.0", f"noise_multiplier={noise}", f"delta={DELTA}")
    finished = bench.fit(PRIVATE_RULE, *(f"--trainer.server.aggregation.{option}" for option in options))
    if finished.code == 2 and "no class" in finished.output:
        raise NotBuiltError("there is no accountant")
    if bench.expect_success(finished):
        rows = metrics(bench.run())
        found = float(rows[-1][EPSILON])
        expected = renyi_epsilon(noise / 2, len(rows))
        bench.expect(abs(found / expected - 1) < 0.01, f"epsilon {found:.4f} in place of {expected:.4f}")
        delta = exact_delta(math.sqrt(len(rows)) * 2 / noise, found)
        bench.expect(delta <= DELTA, f"the exact delta at epsilon {found:.4f} is {delta:.2g}, above {DELTA:g}")
        bench.note(f"epsilon {found:.3f}, by the reference {expected:.3f}; the exact delta there is {delta:.1g}")
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/aggregation/test_secure_sum.py")
    masks = bench.program(sys.executable, *test, limit=300)
    bench.expect(masks.code == 0, f"secure sum: {quote(masks.output[-200:])}")
    bench.note("masks cancel exactly, also where clients drop out")


def renyi_epsilon(noise: float, rounds: int) -> float:
    """Returns epsilon of Gaussian noise over rounds, the smallest over a fine grid of orders.

    Mironov 2017, Corollary 3, and Canonne et al. 2020, Proposition 12.

    Args:
        noise: standard deviation as a multiple of what one client changes.
        rounds: at least 1.
    """
    orders = np.linspace(1.001, 200, 400_000)
    divergence = rounds * orders / (2 * noise**2)
    return float((divergence + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)).min())


def exact_delta(shift: float, epsilon: float) -> float:
    """Returns delta of N(0, 1) and N(shift, 1) at an epsilon (Balle and Wang 2018, Theorem 8)."""
    within = NormalDist().cdf(shift / 2 - epsilon / shift)
    return within - math.exp(epsilon) * NormalDist().cdf(-shift / 2 - epsilon / shift)


@fault(
    PROMISES,
    18,
    injected="this interpreter with its versions: `--help` of every command, and a run; the others are tried in CI",
    must="all end with 0",
    peers="Flower 1.41 needs Python 3.11 or later; FL4Health needs 3.10.",
)
def versions(bench: Bench) -> None:
    """Asks every command for help, and makes a run in a fresh interpreter."""
    from fedvlp.commands.cli import COMMANDS

    left = bench.batch([[command.name, "--help"] for command in COMMANDS], limit=300)
    good = sum(bench.expect_success(each, command.name) for command, each in zip(COMMANDS, left, strict=False))
    runs = bench.folder / "runs"
    words = [*bench.shop.fit_options(), f"--trainer.default_root_dir={runs}"]
    bench.expect_success(bench.program(sys.executable, "-m", "fedvlp", *words, limit=300), "a fresh interpreter")
    bench.note(f"help of {good} of {len(COMMANDS)} commands, and a run of Python {sys.version.split()[0]}")
