"""Other faults: two processes in one run, and the status of a run from outside."""

from __future__ import annotations

import json
import signal

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.workshop import FAULTY


@fault(
    injected="a second process resumes a run that the first process is still training",
    must="the second process is rejected in one line, and the first run equals an uninterrupted one",
    peers="–",
)
def second_process(bench: Bench) -> None:
    """Start both processes."""
    options = (*FAULTY, "--trainer.rounds=25")
    expected, _ = bench.shop.uninterrupted("promptfl", *options)
    first = bench.start_fit(*options, faults={"all": "slow"})
    first.wait_for("round 2/")
    second = bench.fit(*options, "--ckpt_path=last")
    is_during = first.is_alive
    bench.expect_success(bench.finish(first), "the first")
    bench.expect(is_during, "the first ended before the second was rejected")
    bench.expect_refusal(second, what="the second")
    bench.expect_same(bench.run(), expected)
    bench.note(f"the second: {quote(second.error) or f'exit code {second.code}'}")


@fault(
    injected="three runs: one finishes, one is killed, one raises an error; then `fedvlp status` of each",
    must="each state is reported correctly, with the last round",
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
    stages = []
    for name, expected in {"ended": "finished", "killed": "dead", "raised": "failed"}.items():
        run = bench.run(name)
        bench.expect((run / "events.jsonl").is_file(), f"{name}: no events.jsonl")
        finished = bench.command("status", str(run), "--format=json")
        stage = json.loads(finished.output)["stage"]
        bench.expect(stage == expected, f"{name}: reported as {stage}, not {expected}")
        stages.append(f"{name}: {stage}")
    bench.note("; ".join(stages))
