"""Faults of clients and their updates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.clients import STATES, UPLOADS
from benchmarks.faults.fault import fault
from benchmarks.faults.runs import digests, metrics
from benchmarks.faults.workshop import FAULTY, ROUNDS

COHORT = 3


def count_skipped(run: Path) -> int:
    """Count the updates of a run that were rejected."""
    columns = ("clients/failed", "clients/rejected")
    return sum(int(row.get(column) or 0) for row in metrics(run) for column in columns)


def inject_in_turn(bench: Bench, kinds: Iterable[str], *options: str, who: str = "") -> None:
    """Let a client inject another fault in each round, and check that each is handled like a failure.

    Args:
        bench: Bench of the row.
        kinds: Names of faults in ``clients``.
        *options: Options of the run.
        who: The client; see ``clients``.
    """
    prefix = f"{who}:" if who else ""
    faults = {str(number): f"{prefix}{kind}" for number, kind in enumerate(kinds, 1)}
    rounds = f"--trainer.rounds={len(faults)}"
    name = f"--trainer.name=found-{who}"
    finished = bench.fit(*FAULTY, rounds, name, *options, faults=faults)
    if not bench.expect_success(finished):
        return
    run = bench.run(f"found-{who}")
    expected = ("--trainer.name=expected-" + who, *options)
    bench.expect_success(bench.fit(*FAULTY, rounds, *expected, faults={"all": f"{prefix}raise"}))
    same = _prompts(run) == _prompts(bench.run(f"expected-{who}"))
    bench.expect(same, "the prompts differ from a run without the client")
    count = count_skipped(run)
    bench.expect(count == len(faults), f"{count} of {len(faults)} were skipped")
    bench.lose(f"{count} of {COHORT * len(faults)} updates, from the faulty client")
    lines = [line.partition("skipped: it ")[2] for line in finished.output.splitlines() if "is skipped: it" in line]
    bench.note(
        f"{count} of {len(faults)} skipped with a reason (“{quote(lines[-1], 70)}”), the others averaged as without"
    )


def _prompts(run: Path) -> str:
    return digests(run)["prompts.safetensors"]


def one_kind(bench: Bench, kind: str) -> None:
    """Let the first client, and then the last, inject one fault in the second round."""
    for who in ("", "last"):
        _in_second_round(bench, kind, who)


def _in_second_round(bench: Bench, kind: str, who: str) -> None:
    prefix = f"{who}:" if who else ""
    name = f"{kind}-{who or 'first'}"
    finished = bench.fit(*FAULTY, f"--trainer.name={name}", faults={"2": f"{prefix}{kind}"})
    if not bench.expect_success(finished):
        return
    run = bench.run(name)
    bench.expect_success(bench.fit(*FAULTY, "--trainer.name=expected", faults={"2": f"{prefix}raise"}))
    bench.expect(
        _prompts(run) == _prompts(bench.run("expected")), f"{name}: the prompts differ from a run without the client"
    )
    bench.expect(count_skipped(run) == 1, f"{name}: {count_skipped(run)} updates were skipped, not 1")
    bench.lose(f"1 of {COHORT * ROUNDS} updates, from the faulty client")
    lines = [line.partition("skipped: it ")[2] for line in finished.output.splitlines() if "is skipped: it" in line]
    bench.note(
        f"{who or 'first'} client skipped (“{quote(''.join(lines[:1]), 90)}”), the others averaged as without it"
    )


@fault(
    injected="one client raises an error in round 2; in another run only once, with `trainer.clients.on_failure=retry`",
    must="the other clients continue; a retry loses nothing",
    peers="Flower 1.41: an error reply, the two others are averaged, exit 0. NVFlare 2.8: tolerated while "
    "`min_clients` is reached.",
)
def client_raises(bench: Bench) -> None:
    """Skip the client in one run, and retry it in another."""
    finished = bench.fit(*FAULTY, faults={"2": "raise"})
    bench.expect_success(finished)
    count = count_skipped(bench.run())
    bench.expect(count == 1, f"{count} updates were skipped, not 1")
    bench.expect(len(list(bench.run().glob("failures/*.txt"))) == 1, "there is no traceback in failures/")
    bench.lose(f"{count} of {COHORT * ROUNDS} updates")
    expected, _ = bench.shop.uninterrupted("promptfl", *FAULTY)
    options = ("--trainer.clients.on_failure=retry", "--trainer.name=retry")
    bench.expect_success(bench.fit(*FAULTY, *options, faults={"2": "raise_once"}))
    same = _prompts(bench.run("retry")) == _prompts(expected)
    bench.expect(same, "after a retry the prompts differ")
    bench.note(
        f"{count} update skipped, its traceback kept; after a retry the prompts equal an uninterrupted run's prompts"
    )


@fault(
    injected="one client sends NaN in round 2",
    must="the client is skipped, and nothing else changes",
    peers="Flower 1.41: averaged, the model is NaN, no warning, exit 0. NVFlare 2.8 does not check tensors for NaN.",
)
def client_sends_nan(bench: Bench) -> None:
    """Use the first and the last client."""
    one_kind(bench, "nan")


@fault(
    injected="the first or the last client sends a shape that broadcasts",
    must="it is skipped, regardless of the order of updates",
    peers="Flower 1.41: as the first reply it ends the run; as a later reply it is broadcast, and the model is "
    "wrong without a warning. NVFlare 2.8 compares shapes on the client.",
)
def shape_that_broadcasts(bench: Bench) -> None:
    """Use the first and the last client."""
    one_kind(bench, "shape_that_broadcasts")


@fault(
    injected="a client raises an error under each policy; all clients raise errors; fewer than `min_clients` remain",
    must="`skip` continues, all others end with a nonzero exit code, and the last checkpoint is valid",
    peers="Flower 1.41 continues with the remaining clients, down to none, exit 0. NVFlare 2.8 has such a minimum.",
)
def failing_clients(bench: Bench) -> None:
    """Apply all policies in turn, each followed by a resumed run."""
    expected, _ = bench.shop.uninterrupted("promptfl", *FAULTY)
    bench.expect_success(bench.fit(*FAULTY, "--trainer.name=skip", faults={"2": "raise"}), "skip")
    cases = {
        "fail": ("raise", "--trainer.clients.on_failure=fail"),
        "everyone": ("everyone:raise", "--trainer.clients.on_failure=skip"),
        "minimum": ("raise", "--trainer.server.min_clients=3"),
    }
    for name, (kind, option) in cases.items():
        finished = bench.fit(*FAULTY, option, f"--trainer.name={name}", faults={"2": kind})
        bench.expect(finished.code == 1, f"{name}: exit code {finished.code}")
        bench.expect_success(
            bench.fit(*FAULTY, option, f"--trainer.name={name}", "--ckpt_path=last"), f"{name}, resumed"
        )
        bench.expect_same(bench.run(name), expected, name)
    bench.lose(f"with `skip` 1 of {COHORT * ROUNDS} updates")
    bench.note("the three failed runs resumed from the previous round, and equal an uninterrupted one")


@fault(
    injected=f"one client sends {len(UPLOADS) + len(STATES)} kinds of wrong updates, one per round",
    must="each is skipped with a reason, and the model equals a run without the client",
    peers="Flower 1.41 checks only names. NVFlare 2.8 checks names and shapes on the client, and that weights "
    "are finite.",
)
def wrong_updates(bench: Bench) -> None:
    """Inject all kinds of faults."""
    inject_in_turn(bench, [*UPLOADS, *STATES], "--trainer.server.max_update_norm=50")
