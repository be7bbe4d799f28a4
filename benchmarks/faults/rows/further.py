"""Other faults: two processes in one run, and the status of a run from outside."""

from __future__ import annotations

import json
import signal

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.workshop import FAULTY


@fault(
    injected="a second process goes on with a run that the first is still making",
    must="the second is refused in one line, and the first ends equal to an unbroken run",
    peers="–",
)
def second_process(bench: Bench) -> None:
    """Start both processes."""
    options = (*FAULTY, "--trainer.rounds=25")
    expected, _ = bench.shop.unbroken("promptfl", *options)
    first = bench.start_fit(*options, faults={"all": "slow"})
    first.wait_for("round 2/")
    second = bench.fit(*options, "--ckpt_path=last")
    is_during = first.is_alive
    bench.expect_success(bench.finish(first), "the first")
    bench.expect(is_during, "the first ended before the second was refused")
    bench.expect_refusal(second, what="the second")
    bench.expect_same(bench.run(), expected)
    bench.note(f"the second: {quote(second.error) or f'exit code {second.code}'}")


@fault(
    injected="three runs: one ends, one is killed, one raises; then each is asked how it stands",
    must="each is told for what it is, with its last round",
    peers="Flower 1.41: `flwr list`, for runs of its daemon. NVFlare 2.8: `nvflare job`.",
)
def status_of_runs(bench: Bench) -> None:
    """Query the status of each run."""
    bench.expect_success(bench.fit("--trainer.name=ended"))
    victim = bench.start_fit("--trainer.name=killed", "--trainer.rounds=2000")
    victim.wait_for("round 2/")
    victim.signal(signal.SIGKILL)
    bench.finish(victim)
    bench.fit("--trainer.name=raised", "--trainer.callbacks=benchmarks.faults.clients.Broken")
    told = []
    for name, expected in {"ended": "finished", "killed": "dead", "raised": "failed"}.items():
        run = bench.run(name)
        bench.expect((run / "events.jsonl").is_file(), f"{name}: no events.jsonl")
        finished = bench.command("status", str(run), "--format=json")
        stage = json.loads(finished.output)["stage"]
        bench.expect(stage == expected, f"{name}: told to be {stage}, not {expected}")
        told.append(f"{name}: {stage}")
    bench.note("; ".join(told))
