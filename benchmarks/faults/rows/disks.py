"""Full and read-only disks."""

from __future__ import annotations

import shlex
import shutil
import sys

from benchmarks.faults.bench import Bench, NotBuiltError, quote
from benchmarks.faults.commands import Finished
from benchmarks.faults.fault import fault
from benchmarks.faults.runs import differing


def error_line(output: str) -> str:
    """Find the first line of an output with an error of fedvlp."""
    return next((line for line in output.splitlines() if line.startswith("fedvlp: error:")), "")


@fault(
    injected="the disk is full from round 2 on; in another run it is read-only",
    must="one line with the path; once there is space, the run resumes and equals an uninterrupted one",
    peers="–",
)
def full_disk(bench: Bench) -> None:
    """Mount a small separate disk, if the system allows it."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        raise NotBuiltError("a separate disk can be mounted only on Linux")
    expected, _ = bench.shop.uninterrupted("promptfl", "--trainer.rounds=6")
    words = [*bench.shop.fit_options(), "--trainer.rounds=6", f"--trainer.default_root_dir={bench.folder / 'runs'}"]
    fit = shlex.join([sys.executable, "-m", "fedvlp", *words])
    runs = shlex.quote(str(bench.folder / "runs"))
    copied = shlex.quote(str(bench.folder / "copied"))
    (bench.folder / "runs").mkdir()
    # Fill the disk after the first checkpoint. Only the run's own writes slow it down.
    full = (
        f"mount -t tmpfs -o size=2m disk {runs} && ({fit} > first.txt 2>&1 & "
        "fit=$!; while kill -0 $fit 2>/dev/null && "
        f"! ls {runs}/run/*/checkpoints/round-00001* >/dev/null 2>&1; do sleep 0.01; done; "
        f"head -c 10M /dev/zero > {runs}/filler 2>/dev/null; wait $fit; echo $? > code); "
        f"cat first.txt; rm -f {runs}/filler; {fit} --ckpt_path=last; cp -r {runs}/run {copied}"
    )
    finished = _in_namespace(bench, full)
    first = (bench.folder / "first.txt").read_text(errors="replace")
    code = (bench.folder / "code").read_text().strip()
    bench.expect(code == "1", f"full: exit code {code}: {quote(first[-200:])}")
    bench.expect("Traceback" not in first, "full: a traceback")
    bench.expect(str(bench.folder / "runs") in error_line(first), f"full: no line with the path: {quote(first[-200:])}")
    bench.expect_success(finished, "the resumed run")
    copied_runs = sorted((bench.folder / "copied").glob("*/"))
    same = bool(copied_runs) and not differing(copied_runs[-1], expected)
    bench.expect(same, "the resumed run differs")
    if same:
        bench.note(f"full: {quote(error_line(first).replace(str(bench.folder), ''), 110)}; resumed, equal in the end")
    else:
        bench.lose("the run cannot be resumed unchanged")
    locked = _in_namespace(bench, f"mount -t tmpfs -o ro disk {runs} && {fit}")
    bench.expect(
        locked.code == 1 and not locked.has_traceback,
        f"read-only: exit code {locked.code}: {quote(locked.output[-200:])}",
    )
    bench.expect(str(bench.folder / "runs") in error_line(locked.output), "read-only: no line with the path")
    bench.note(f"read-only: {quote(error_line(locked.output).replace(str(bench.folder), ''), 110)}")


def _in_namespace(bench: Bench, script: str) -> Finished:
    """Run a script that may mount disks, which are invisible to other processes."""
    inside = f"cd {shlex.quote(str(bench.folder))} && export PYTHONPATH=$OLDPWD && {script}"
    return bench.program("unshare", "--map-root-user", "--mount", "sh", "-c", inside, limit=300)
