"""Runs as processes and as tasks of Slurm's job arrays; shell scripts stand in for ``fedvlp fit`` and for Slurm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fedvlp.tools.sweep.jobs import Job, SlurmArray, Status, SweepProgress, run_jobs
from fedvlp.utils.errors import UserError

SCRIPT = """
echo "$1 on ${CUDA_VISIBLE_DEVICES:-cpu} with ${OMP_NUM_THREADS:-all} threads"
echo attempt >> "$2/attempts"
finish() { mkdir "$2/2020-01-01"; echo '{}' > "$2/2020-01-01/summary.json"; }
case $1 in
    end) finish "$@" ;;
    raise) echo "Traceback (most recent call last):
  File
ValueError: no such luck"; exit 1 ;;
    refuse) echo "fedvlp: error: a bad root" >&2; echo more; exit 1 ;;
    kill) kill -9 $$ ;;
    wait) if [ $(wc -l < "$2/attempts") = 1 ]; then exec sleep 600; fi; finish "$@" ;;
esac
"""
SLURM = """#!/bin/bash
case "${0##*/}" in
sbatch) if [ -e refuse ]; then cat refuse >&2; exit 1; fi
    printf '%s\\n' "$@" > arguments; cat > script; echo "101;cluster" ;;
squeue) cat queued ;;
esac
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ends a run as its first argument says, in the folder that is the second."""
    monkeypatch.setattr("fedvlp.tools.sweep.jobs.SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    return ["sh", str(script)]


def jobs_of(tmp_path: Path, *endings: str) -> list[Job]:
    """One job for each ending."""
    jobs = []
    for seed, ending in enumerate(endings):
        folder = tmp_path / f"{seed}-{ending}"
        axes = {"model": ending, "config": "trip", "held_out": "ink", "seed": seed}
        jobs.append(Job(folder.name, (ending, str(folder)), folder, axes))
    return jobs


def test_a_run_that_fails_or_is_killed_fails_alone(tmp_path, command, capsys):
    jobs = jobs_of(tmp_path, "raise", "end", "refuse", "kill", "nothing", "end")
    progress = SweepProgress(tmp_path, jobs)
    run_jobs(jobs, 2, progress.report, command=command)
    assert {job.name: progress.state(job) for job in jobs} == {
        **{"0-raise": "failed", "1-end": "done", "2-refuse": "failed"},
        **{"3-kill": "failed", "4-nothing": "failed", "5-end": "done"},
    }
    assert {name: entry["error"] for name, entry in progress.entries.items()} == {
        **{"0-raise": "ValueError: no such luck", "1-end": "", "2-refuse": "fedvlp: error: a bad root"},
        **{"3-kill": "The process was ended by SIGKILL.", "4-nothing": "nothing on cpu with 1 threads", "5-end": ""},
    }
    assert progress.print_failures() == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("2 of 6 runs done\n")
    assert " raise, held out ink, seed 0: failed: ValueError: no such luck, 0 s\n" in printed.out
    assert f"failed: refuse, held out ink, seed 2: fedvlp: error: a bad root\n  {jobs[2].log}\n" in printed.err
    entries = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert {**entries["2-refuse"], "seconds": 0.0} == {
        **{"model": "refuse", "config": "trip", "held_out": "ink", "seed": 2},
        **{"state": "failed", "seconds": 0.0, "error": "fedvlp: error: a bad root"},
    }


def test_each_worker_has_a_device(tmp_path, command):
    jobs = jobs_of(tmp_path, "end", "end", "end")
    run_jobs(jobs, 2, lambda job, status: None, ("GPU-a", "GPU-b"), command)
    logs = "".join(job.log.read_text() for job in jobs)
    assert "on GPU-a with all threads" in logs
    assert "on GPU-b with all threads" in logs
    assert "on cpu" not in logs


def test_stopped_runs_resume_with_the_next_call(tmp_path, command):
    jobs = jobs_of(tmp_path, "end", "wait", "wait")
    reports: list[tuple[str, str]] = []

    def stop_when_one_is_done(job: Job, status: Status) -> None:
        reports.append((job.name, status.state))
        if status.state == "done":
            while not all((other.folder / "attempts").exists() for other in jobs):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, 3, stop_when_one_is_done, command=command)
    assert reports[3:] == [("0-end", "done"), ("1-wait", "interrupted"), ("2-wait", "interrupted")]
    progress = SweepProgress(tmp_path, jobs)
    assert [job.name for job in progress.missing] == ["1-wait", "2-wait"]
    run_jobs(progress.missing, 3, progress.report, command=command)
    assert [job.is_done for job in jobs] == [True, True, True]
    assert [(job.folder / "attempts").read_text().count("attempt") for job in jobs] == [1, 2, 2]
    assert jobs[1].log.read_text().count(f"$ fedvlp wait {jobs[1].folder}\n") == 2


def test_runs_of_earlier_calls_stay_and_a_damaged_file_is_replaced(tmp_path):
    first, second = jobs_of(tmp_path, "a", "b")
    SweepProgress(tmp_path, [first]).write()
    SweepProgress(tmp_path, [second]).write()
    assert json.loads((tmp_path / "sweep.json").read_text())["runs"].keys() == {"0-a", "1-b"}
    (tmp_path / "sweep.json").write_text('{"runs": ')
    assert SweepProgress(tmp_path, []).entries == {}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder in which stand-ins for Slurm's commands keep what they received."""
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue"):
        (tmp_path / "bin" / name).write_text(SLURM)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "queued").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_runs_are_one_array_whose_tasks_make_them(slurm, command, monkeypatch):
    folder = slurm / "50% of runs"
    folder.mkdir()
    jobs = jobs_of(folder, "end", "refuse")
    for job in jobs:
        job.folder.mkdir()
    array = SlurmArray(folder, {"cpus_per_task": "3", "time": "1:00"}, ("export CUDA_VISIBLE_DEVICES=mine",))
    assert array.submit(jobs, 2, command) == "101"
    arguments = set((slurm / "arguments").read_text().splitlines())
    assert {"--cpus-per-task=3", "--time=1:00", "--requeue", "--array=0-1%2", f"--job-name={array.name}"} <= arguments
    assert f"--output={folder.resolve()}/slurm-%A_%a.txt".replace("50%", "50%%") in arguments
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert os.system(f"bash {slurm / 'script'} > printed") == 0
    assert (slurm / "printed").read_text() == "end on mine with 1 threads\n"
    assert [job.is_done for job in jobs] == [True, False]


def test_what_is_queued_is_counted_by_the_folders_name(slurm):
    array = SlurmArray(slurm / "first", {})
    assert array.num_queued() == 0
    (slurm / "queued").write_text("101_0\n101_1\n")
    assert array.num_queued() == 2
    assert array.name.startswith("fedvlp-first-")
    assert array.name != SlurmArray(slurm / "other" / "first", {}).name


def test_errors_of_slurm_are_shown(slurm, monkeypatch):
    (slurm / "refuse").write_text("sbatch: error: invalid partition specified: gpuu\n")
    array = SlurmArray(slurm, {})
    with pytest.raises(UserError, match="refuses: sbatch: error: invalid partition specified: gpuu"):
        array.submit(jobs_of(slurm, "end"), None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="Slurm's command squeue can't be called"):
        array.num_queued()
