"""Faults of clients and of what they send."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.clients import STATES, UPLOADS
from benchmarks.faults.fault import fault
from benchmarks.faults.page import CLIENTS, FOUND, PROMISES
from benchmarks.faults.runs import checkpoints, digests, metrics
from benchmarks.faults.workshop import FAULTY, ROUNDS
from fedvlp.utils.tensor_files import read_tensors

COHORT = 3
WEIGHT = ("--trainer.clients.attack", "benchmarks.faults.clients.FalseWeight")


def left_out(run: Path) -> int:
    """Returns how many updates did not count in a run."""
    columns = ("clients/failed", "clients/rejected")
    return sum(int(row.get(column) or 0) for row in metrics(run) for column in columns)


def tried_in_turn(bench: Bench, kinds: Iterable[str], *options: str, who: str = "") -> None:
    """Lets a client do another thing in each round, and sees that it counts in none: as if it had failed in each.

    Args:
        bench: the row's.
        kinds: what it does, as ``clients`` calls it.
        *options: of the run.
        who: which client, see there.
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
    bench.expect(same, "the prompts are not those without the client")
    count = left_out(run)
    bench.expect(count == len(faults), f"{count} of {len(faults)} were left out")
    bench.lose(f"{count} of {COHORT * len(faults)} updates: those of the faulty client")
    lines = [line.partition("left out: it ")[2] for line in finished.output.splitlines() if "is left out" in line]
    bench.note(
        f"{count} of {len(faults)} left out with a reason (“{quote(lines[-1], 70)}”), the others averaged as without"
    )


def _prompts(run: Path) -> str:
    return digests(run)["prompts.safetensors"]


@fault(
    FOUND,
    4,
    injected="one client raises, and in other rounds sends another shape, other names, a list, nothing, a sparse "
    "tensor, one without numbers; in a run of its own it has no memory left",
    must="its update is left out with client and reason, and the others go on",
    peers="Flower 1.41: an exception is an error reply and the others are averaged; another shape or other names end "
    "the run. NVFlare 2.8 goes on while `min_clients` can be reached.",
)
def client_fails(bench: Bench) -> None:
    """All in one run, and without memory in another."""
    tried_in_turn(bench, ("raise", "other_shape", "other_keys", "list", "none", "sparse", "meta", "no_tensor"))
    finished = bench.fit(*FAULTY, "--trainer.name=memory", faults={"2": "out_of_memory"})
    bench.expect_success(finished, "the run without memory")
    bench.expect(left_out(bench.run("memory")) == 1, "without memory: the client was not left out")


@fault(
    FOUND,
    5,
    injected="one client sends float64, half, whole or complex numbers, or 1e30 times its prompts; then all send "
    "nothing",
    must="types and norms are checked, growth is said, and a round without any update is an error",
    peers="Flower 1.41: float64 makes the model float64 without a word. NVFlare 2.8 does not look for NaN in tensors.",
)
def wrong_numbers(bench: Bench) -> None:
    """Types and norms in one run, nothing at all in another, and growth without a bound in a third."""
    kinds = ("float64", "half", "int64", "complex", "huge")
    tried_in_turn(bench, kinds, "--trainer.server.max_update_norm=50")
    empty = bench.fit(*FAULTY, "--trainer.name=empty", faults={"2": "everyone:nothing"})
    bench.expect_refusal(empty, "Round 2", what="a round without updates")
    bench.expect(len(checkpoints(bench.run("empty"))) == 1, "the round before has no checkpoint")
    bench.note(f"nobody sends anything: {quote(empty.error, 100)}")
    huge = bench.fit(*FAULTY, "--trainer.name=huge", faults={"1": "huge"})
    is_said = "diverged" in huge.output or "diverged" in huge.error
    bench.expect(is_said, f"growth without bound is not said: {quote(huge.output[-300:])}")
    bench.note(f"without a bound on the norm: {quote(huge.error or diverged(huge.output), 100)}")


def diverged(output: str) -> str:
    """Returns what a run said of its divergence; empty if nothing."""
    return next((line.strip() for line in output.splitlines() if "diverged" in line), "")


def one_kind(bench: Bench, kind: str) -> None:
    """Lets the first client, and then the last, do one thing in the second round."""
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
        _prompts(run) == _prompts(bench.run("expected")), f"{name}: the prompts are not those without the client"
    )
    bench.expect(left_out(run) == 1, f"{name}: {left_out(run)} updates were left out, not 1")
    bench.lose(f"1 of {COHORT * ROUNDS} updates: that of the faulty client")
    lines = [line.partition("left out: it ")[2] for line in finished.output.splitlines() if "is left out" in line]
    bench.note(
        f"{who or 'first'} client left out (“{quote(''.join(lines[:1]), 90)}”), the others averaged as without it"
    )


@fault(
    CLIENTS,
    1,
    injected="one client raises in round 2; then once only, with `clients.on_failure=retry`",
    must="the others go on; a second try loses nothing",
    peers="Flower 1.41: an error reply, the two others are averaged, exit 0. NVFlare 2.8: tolerated while "
    "`min_clients` can be reached.",
)
def client_raises(bench: Bench) -> None:
    """Skips in one run, tries again in another."""
    finished = bench.fit(*FAULTY, faults={"2": "raise"})
    bench.expect_success(finished)
    count = left_out(bench.run())
    bench.expect(count == 1, f"{count} updates were left out, not 1")
    bench.expect(len(list(bench.run().glob("failures/*.txt"))) == 1, "no traceback is kept in failures/")
    bench.lose(f"{count} of {COHORT * ROUNDS} updates")
    expected, _ = bench.shop.unbroken("promptfl", *FAULTY)
    options = ("--trainer.clients.on_failure=retry", "--trainer.name=retry")
    bench.expect_success(bench.fit(*FAULTY, *options, faults={"2": "raise_once"}))
    same = _prompts(bench.run("retry")) == _prompts(expected)
    bench.expect(same, "after a second try the prompts are others")
    bench.note(
        f"{count} update left out, its traceback kept; with a second try the prompts are equal to an unbroken run's"
    )


@fault(
    CLIENTS,
    2,
    injected="one client sends NaN in round 2",
    must="it is left out, and nothing else changes",
    peers="Flower 1.41: averaged, the model is NaN, no warning, exit 0. NVFlare 2.8 does not look for NaN in tensors.",
)
def client_sends_nan(bench: Bench) -> None:
    """First and last client."""
    one_kind(bench, "nan")


@fault(
    CLIENTS,
    3,
    injected="one client sends a shape that broadcasts, as the first and as the last",
    must="it is left out, in whatever order updates come",
    peers="Flower 1.41: as the first reply it ends the run; as a later one it is broadcast, and the model is wrong "
    "without a word. NVFlare 2.8 compares shapes on the client.",
)
def shape_that_broadcasts(bench: Bench) -> None:
    """First and last client."""
    one_kind(bench, "shape_that_broadcasts")


@fault(
    CLIENTS,
    4,
    injected="one client sends another shape",
    must="it is left out",
    peers="Flower 1.41: ValueError, the run ends.",
)
def other_shape(bench: Bench) -> None:
    """First and last client."""
    one_kind(bench, "other_shape")


@fault(
    CLIENTS,
    5,
    injected="one client sends other names",
    must="it is left out",
    peers="Flower 1.41 says that it skips the aggregation, and the run ends. NVFlare 2.8 checks names on the client.",
)
def other_keys(bench: Bench) -> None:
    """First and last client."""
    one_kind(bench, "other_keys")


@fault(
    CLIENTS,
    6,
    injected="one client sends float64",
    must="it is left out, and the model stays float32",
    peers="Flower 1.41: the model becomes float64 without a word, exit 0.",
)
def client_sends_float64(bench: Bench) -> None:
    """First and last client, and the type of what is deployed."""
    one_kind(bench, "float64")
    bench.expect(_types(bench.run("float64-first")) == {"torch.float32"}, "what is deployed is not float32")


def _types(run: Path) -> set[str]:
    return {str(value.dtype) for value in read_tensors(run / "prompts.safetensors")[0].values()}


@fault(
    CLIENTS,
    7,
    injected="all clients say that they trained on 0 images",
    must="one line, before the model is changed",
    peers="Flower 1.41: ZeroDivisionError, the run ends. NVFlare 2.8 takes 1 in place of such a weight.",
)
def no_examples(bench: Bench) -> None:
    """All clients lie."""
    finished = bench.fit(*FAULTY, *WEIGHT, "--trainer.clients.attack.clients=3", "--trainer.clients.attack.weight=0")
    bench.expect_refusal(finished, "Round 1")
    bench.note(quote(finished.error))


@fault(
    CLIENTS,
    8,
    injected="one client says that it trained on -10 images; in other runs on NaN and on infinitely many",
    must="it is left out",
    peers="Flower 1.41: accepted, exit 0. NVFlare 2.8 takes 1 in place of such a weight.",
)
def negative_examples(bench: Bench) -> None:
    """One client lies."""
    for weight in ("-10", "nan", "inf"):
        name = f"--trainer.name=weight{weight}"
        finished = bench.fit(
            *FAULTY, *WEIGHT, "--trainer.clients.attack.clients=1", f"--trainer.clients.attack.weight={weight}", name
        )
        if bench.expect_success(finished, weight):
            count = left_out(bench.run(f"weight{weight}"))
            bench.expect(count == ROUNDS, f"{weight}: {count} of {ROUNDS} were left out")
            bench.note(f"{weight}: {count} of {ROUNDS} left out")
            bench.lose(f"{ROUNDS} of {COHORT * ROUNDS} updates in each run: those of the client that lies")


@fault(
    CLIENTS,
    13,
    injected="clients send a whole number as well, such as a step counter, in an int64 buffer",
    must="it stays a whole number, or is refused with its name",
    peers="Flower 1.41: averaged into float64.",
)
def integer_buffer(bench: Bench) -> None:
    """A method with such a buffer."""
    finished = bench.fit("--model", "benchmarks.faults.clients.CountingPromptFL")
    if finished.code == 0:
        steps = read_tensors(bench.run() / "prompts.safetensors")[0]["steps"]
        bench.expect(str(steps.dtype) == "torch.int64", f"it became {steps.dtype}")
        bench.note(f"deployed as {steps.dtype}")
    else:
        bench.expect_refusal(finished, "steps")
        bench.note(f"refused: {quote(finished.error)}")


@fault(
    CLIENTS,
    14,
    injected="one client sends bfloat16; then a run with `precision=bf16-mixed`",
    must="the one is left out, the other works and stays float32 where it adds up",
    peers="Flower 1.41: TypeError on the client, as NumPy has no such type.",
)
def bfloat16(bench: Bench) -> None:
    """An upload, and a precision."""
    one_kind(bench, "bfloat16")
    bench.expect_success(bench.fit("--trainer.precision=bf16-mixed", "--trainer.name=mixed"), "bf16-mixed")
    bench.expect(_types(bench.run("mixed")) == {"torch.float32"}, "prompts are not float32")
    bench.note("bf16-mixed ends with prompts in float32")


@fault(
    PROMISES,
    1,
    injected="a client raises under each policy; all clients raise; fewer are left than `min_clients`",
    must="`skip` goes on, all others end with an exit code that is not 0, and the last checkpoint is good",
    peers="Flower 1.41 goes on with those that are left, down to none, exit 0. NVFlare 2.8 has such a minimum.",
)
def failing_clients(bench: Bench) -> None:
    """Policies in turn, each followed by a run that goes on."""
    expected, _ = bench.shop.unbroken("promptfl", *FAULTY)
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
            bench.fit(*FAULTY, option, f"--trainer.name={name}", "--ckpt_path=last"), f"{name} goes on"
        )
        bench.expect_same(bench.run(name), expected, name)
    bench.lose(f"with `skip` 1 of {COHORT * ROUNDS} updates")
    bench.note("the three runs that ended went on from the round before, and are equal to an unbroken one")


@fault(
    PROMISES,
    2,
    injected=f"one client sends {len(UPLOADS) + len(STATES)} kinds of wrong updates, one a round",
    must="each is left out with a reason, and the model is that without the client",
    peers="Flower 1.41 checks names alone. NVFlare 2.8 checks names and shapes on the client, and that weights are "
    "finite.",
)
def wrong_updates(bench: Bench) -> None:
    """Every kind there is."""
    tried_in_turn(bench, [*UPLOADS, *STATES], "--trainer.server.max_update_norm=50")
