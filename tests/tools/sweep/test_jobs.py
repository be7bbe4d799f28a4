"""Runs as processes and as tasks of Slurm's job arrays, with imitations of ``fedvlp fit`` and Slurm."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedvlp.tools.sweep import jobs as module
from fedvlp.tools.sweep.jobs import PRELOADED, Job, SlurmArray, Status, SweepProgress, run_jobs
from fedvlp.utils.errors import UserError
from tests.helpers.stand_in import fake_run

SLURM = """#!/bin/bash
case "${0##*/}" in
sbatch) if [ -e refuse ]; then cat refuse >&2; exit 1; fi
    printf '%s\\n' "$@" > arguments; cat > script; echo "101;cluster" ;;
squeue) cat queued ;;
esac
"""


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes fast, without a preset number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "PRELOADED", (fake_run.__module__,))


def make_jobs(tmp_path: Path, *endings: str) -> list[Job]:
    """Make one job per ending."""
    jobs = []
    for seed, ending in enumerate(endings):
        folder = tmp_path / f"{seed}-{ending}"
        axes = {"model": ending, "config": "trip", "held_out": "ink", "seed": seed}
        jobs.append(Job(folder.name, (ending, str(folder)), folder, axes))
    return jobs


def test_a_failed_or_killed_run_does_not_affect_others(tmp_path, capsys):
    jobs = make_jobs(tmp_path, "raise", "end", "refuse", "kill", "end")
    progress = SweepProgress(tmp_path, jobs)
    run_jobs(jobs, 2, progress.report, command=fake_run)
    entries = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert {name: (entry["state"], entry["error"]) for name, entry in entries.items()} == {
        "0-raise": ("failed", "ValueError: no such luck"),
        "1-end": ("done", ""),
        "2-refuse": ("failed", "fedvlp: error: a bad root"),
        "3-kill": ("failed", "The process was killed by SIGKILL."),
        "4-end": ("done", ""),
    }
    assert jobs[1].log.read_text() == f"$ fedvlp end {jobs[1].folder}\nend on cpu with 1 threads\n"
    assert progress.print_failures() == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("2 of 5 runs done\n")
    assert " raise, held out ink, seed 0: failed: ValueError: no such luck, " in printed.out
    assert f"failed: refuse, held out ink, seed 2: fedvlp: error: a bad root\n  {jobs[2].log}\n" in printed.err
    # The next call keeps the entries of other runs, and replaces a damaged file.
    SweepProgress(tmp_path, make_jobs(tmp_path, "other")).write()
    assert len(json.loads((tmp_path / "sweep.json").read_text())["runs"]) == 6
    (tmp_path / "sweep.json").write_text('{"runs": ')
    assert SweepProgress(tmp_path, []).entries == {}


@pytest.mark.every_config
def test_preloaded_modules_start_no_thread():
    program = f"import os, {', '.join(PRELOADED)}; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_each_worker_has_a_device_and_its_runs_a_fresh_interpreter(tmp_path):
    jobs = make_jobs(tmp_path, "end", "end", "end")
    run_jobs(jobs, 2, lambda job, status: None, ("GPU-a", "GPU-b"), fake_run)
    logs = "".join(job.log.read_text() for job in jobs)
    assert "on GPU-a with all threads" in logs
    assert "on GPU-b with all threads" in logs
    assert "on cpu" not in logs


def test_stopped_runs_resume_with_the_next_call(tmp_path):
    jobs = make_jobs(tmp_path, "end", "wait", "wait")
    reports: list[tuple[str, str]] = []

    def stop_when_one_is_done(job: Job, status: Status) -> None:
        reports.append((job.name, status.state))
        if status.state == "done":
            while not all((other.folder / "attempts").exists() for other in jobs):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 3, stop_when_one_is_done, command=fake_run)
    assert reports[3:] == [("0-end", "done"), ("1-wait", "interrupted"), ("2-wait", "interrupted")]
    progress = SweepProgress(tmp_path, jobs)
    assert [job.name for job in progress.missing] == ["1-wait", "2-wait"]
    run_jobs(progress.missing, 3, progress.report, command=fake_run)
    assert [job.is_done for job in jobs] == [True, True, True]
    assert [(job.folder / "attempts").read_text().count("attempt") for job in jobs] == [1, 2, 2]
    assert jobs[1].log.read_text().count(f"$ fedvlp wait {jobs[1].folder}\n") == 2


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Make a folder where imitations of Slurm's commands store their input."""
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue"):
        (tmp_path / "bin" / name).write_text(SLURM)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "queued").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_tasks_of_one_array(slurm, monkeypatch):
    folder = slurm / "50% of runs"
    folder.mkdir()
    array = SlurmArray(folder, {"cpus_per_task": "3", "time": "1:00"}, ("export CUDA_VISIBLE_DEVICES=mine",))
    words = 'echo "$OMP_NUM_THREADS thread on $CUDA_VISIBLE_DEVICES: $0"'
    monkeypatch.setattr(module, "COMMAND", ("bash", "-c", words))
    assert array.submit(make_jobs(folder, "first", "second"), 2) == "101"
    arguments = set((slurm / "arguments").read_text().splitlines())
    assert {"--cpus-per-task=3", "--time=1:00", "--requeue", "--array=0-1%2", f"--job-name={array.name}"} <= arguments
    assert f"--output={folder.resolve()}/slurm-%A_%a.txt".replace("50%", "50%%") in arguments
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    assert os.system(f"bash {slurm / 'script'} > printed") == 0
    assert (slurm / "printed").read_text() == "1 thread on mine: second\n"


def test_queued_tasks_are_counted_by_the_folders_name_and_errors_of_slurm_are_shown(slurm, monkeypatch):
    array = SlurmArray(slurm / "first", {})
    (slurm / "queued").write_text("101_0\n101_1\n")
    assert array.num_queued() == 2
    assert array.name.startswith("fedvlp-first-")
    assert array.name != SlurmArray(slurm / "other" / "first", {}).name
    (slurm / "refuse").write_text("sbatch: error: invalid partition specified: gpuu\n")
    with pytest.raises(UserError, match="failed: sbatch: error: invalid partition specified: gpuu"):
        array.submit(make_jobs(slurm, "end"), None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="Slurm's command squeue cannot be run"):
        array.num_queued()
