"""Faults of checkpoints, and of resuming from them."""

from __future__ import annotations

import signal
from pathlib import Path

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.runs import checkpoints, digests, metrics
from benchmarks.faults.workshop import ROUNDS

BACK = "Trying the previous checkpoint"
KILLS = 4
"""Number of kills of runs of each method, at random moments."""
SYSTEMS = ("trip", "plan", "diprompt", "fed_dpt", "adapt")


def unfinished(bench: Bench, rounds: int = ROUNDS - 1) -> Path:
    """Make a run without its last round, and return its folder."""
    bench.expect_success(bench.fit(f"--trainer.rounds={rounds}"), "the run to resume")
    return bench.run()


@fault(
    injected="`fit --ckpt_path` with a mistyped folder, an empty path or `/dev/zero`",
    must="one error line and no new run",
    peers="Flower 1.41 has no resume.",
)
def mistyped_checkpoint(bench: Bench) -> None:
    """Resume from a missing checkpoint."""
    for where in ("runs/mistyped", "", "/dev/zero"):
        finished = bench.fit(f"--ckpt_path={where}")
        bench.expect_refusal(finished, what=f"ckpt_path {where!r}")
        bench.note(f"`{where}`: {quote(finished.error, 60)}")
    bench.expect(not (bench.folder / "runs").exists(), "a run was started")


@fault(
    injected="SIGKILL while a run writes files",
    must="the next run removes the temporary files, and finished rounds are kept",
    peers="–",
)
def leftovers(bench: Bench) -> None:
    """Kill processes that are writing, so that they leave temporary files."""
    victim = bench.start_fit("--trainer.rounds=2000")
    bench.expect(victim.wait_for("round 2/"), "no second round")
    run = bench.run()
    # A process that is killed while writing leaves such a file.
    (run / "checkpoints" / ".round-00009.safetensors.0123456789ab.tmp").write_bytes(b"half a checkpoint")
    victim.signal(signal.SIGKILL)
    bench.finish(victim)
    done = len(metrics(run))
    left = list(run.parent.rglob(".*.tmp"))
    bench.expect_success(bench.fit("--ckpt_path=last", f"--trainer.rounds={done + 1}"))
    remaining = list(run.parent.rglob(".*.tmp"))
    bench.expect(not remaining, f"temporary files remain: {[path.name for path in remaining]}")
    bench.expect(len(metrics(run)) == done + 1, "rounds are missing")
    bench.note(f"{len(left)} temporary files after the kill, {len(remaining)} after the next run")


@fault(
    injected="SIGKILL at random moments of runs of TRIP, PLAN, DiPrompT, Fed-DPT and ADAPT, then `--ckpt_path last`",
    must="the finished run equals an uninterrupted one, including the state of the server and the clients",
    peers="Flower 1.41 tests that killed nodes return; the run of a killed ServerApp is marked as failed. "
    "NVFlare 2.8 submits the job again. FL4Health tests that it resumes.",
)
def killed_runs(bench: Bench) -> None:
    """Kill runs of each method repeatedly until the requested number of kills is reached."""
    for system in SYSTEMS:
        _kill(bench, system)


def _kill(bench: Bench, system: str) -> None:
    """Kill the runs of a method, and note the number of equal results."""
    options = ("--trainer.rounds=4", "--trainer.clients.cohort_size=3")
    expected, seconds = bench.shop.uninterrupted(system, *options)
    kills = 0
    runs = 0
    equal = 0
    while kills < KILLS:
        name = f"--trainer.name={system}-{runs}"
        runs += 1
        for _ in range(2):
            victim = bench.start_fit(*options, name, "--ckpt_path=last", method=system)
            victim.wait(bench.random.uniform(0.2, 1.0) * seconds)
            finished = bench.finish(victim)
            if finished.code == 0:  # finished before the kill, because the machine is less busy than before
                seconds = min(seconds, finished.seconds)
                break
            kills += 1
        bench.expect_success(bench.fit(*options, name, "--ckpt_path=last", method=system), system)
        equal += bench.expect_same(bench.run(f"{system}-{runs - 1}"), expected, f"{system} {runs}")
    bench.note(f"{system}: {equal} of {runs} runs equal after {kills} kills")


@fault(
    injected="SIGINT and later SIGTERM during a round; then the newest checkpoint is truncated",
    must="the run resumes from the last valid checkpoint, and ends equal to an uninterrupted one",
    peers="Flower 1.41 writes no checkpoints. NVFlare 2.8 has snapshots of one workflow.",
)
def interrupted(bench: Bench) -> None:
    """Interrupt twice, truncate a file, and resume."""
    expected, _ = bench.shop.uninterrupted("promptfl", "--trainer.rounds=12")
    codes = []
    for number, words in ((signal.SIGINT, "round 2/"), (signal.SIGTERM, "round 5/")):
        victim = bench.start_fit("--trainer.rounds=12", "--ckpt_path=last")
        bench.expect(victim.wait_for(words), f"never printed {words}")
        victim.signal(number)
        finished = bench.finish(victim, 30)
        bench.expect(not finished.has_traceback, f"signal {int(number)}: a traceback")
        codes.append(finished.code)
    bench.expect(codes[0] == 130, f"exit code {codes[0]} after SIGINT")
    newest = checkpoints(bench.run())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    finished = bench.fit("--trainer.rounds=12", "--ckpt_path=last")
    bench.expect_success(finished)
    bench.expect(BACK in finished.output, "no message about the truncated checkpoint")
    if bench.expect_same(bench.run(), expected):
        bench.note(f"resumed twice, the second time from the checkpoint before {newest.name}; equal in the end")


@fault(
    injected="a run is resumed with another learning rate, prompt length, seed, number of local epochs, held-out "
    "domain or batch size",
    must="rejected, with the old and the new value",
    peers="Flower 1.41 has no resume. NVFlare 2.8 can start one workflow at a later round.",
)
def changed_options(bench: Bench) -> None:
    """Resume with changed options."""
    run = unfinished(bench)
    before = digests(run)
    changes = {
        "--model.optimizer.lr=0.3": "lr",
        "--model.prompt_length=3": "prompt_length",
        "--seed_everything=5": "seed",
        "--trainer.local.epochs=2": "training.local.epochs",
        "--data.held_out=domain 0": "split",
        "--data.batch_size=7": "batch_size",
    }
    rejected = 0
    for option, name in changes.items():
        rejected += bench.expect_refusal(bench.fit("--ckpt_path=last", option), name, what=option)
    bench.expect(digests(run) == before, "the run's files were changed")
    bench.expect(len(list(run.parent.glob("*/"))) == 1, "a new run was started")
    bench.note(f"{rejected} of {len(changes)} changes rejected with a line that names them")
