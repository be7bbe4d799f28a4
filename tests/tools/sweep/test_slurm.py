"""Runs as tasks of Slurm's job arrays; the tests stand in for its commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvlp.tools.sweep import Job, SlurmArray, SlurmOptions, read_launcher
from fedvlp.utils.errors import UserError
from tests.helpers.slurm_stub import SlurmStub, slurm

RUN = """
echo "$WORD with $OMP_NUM_THREADS threads"
case $1 in
    end) mkdir "$2/2020-01-01"; echo '{}' > "$2/2020-01-01/summary.json" ;;
    refuse) echo "fedvlp: error: a bad root" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStub]:
    monkeypatch.setattr("fedvlp.tools.sweep.slurm.SECONDS_BETWEEN_LOOKS", 0.02)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with slurm(tmp_path / "cluster") as stub:
        yield stub


@pytest.fixture
def queue(tmp_path: Path) -> Callable[[], SlurmArray]:
    """The queue of a sweep, as each call of the command reads it."""
    folder = tmp_path / "50% of runs"
    folder.mkdir()
    script = tmp_path / "run.sh"
    script.write_text(RUN)
    options = SlurmOptions({"time": "1:00"}, ("export WORD=here",))
    return lambda: SlurmArray(folder, options, ("sh", str(script)))


def jobs_of(folder: Path, *endings: str) -> list[Job]:
    """One job for each ending."""
    names = [f"{number}-{ending}" for number, ending in enumerate(endings)]
    return [Job(name, (ending, str(folder / name)), folder / name) for name, ending in zip(names, endings, strict=True)]


def last_reports(queue: SlurmArray, jobs: list[Job]) -> dict[str, tuple[str, str]]:
    """Waits for the jobs, and returns the last state and error of each."""
    reports: dict[str, tuple[str, str]] = {}
    queue.wait(jobs, lambda job, status: reports.__setitem__(job.name, (status.state, status.error)))
    return reports


def test_the_runs_are_one_array(stub, queue):
    jobs = jobs_of(queue().folder, "end", "refuse", "nothing")
    array = queue()
    array.submit(jobs, 2)
    assert last_reports(array, jobs) == {
        "0-end": ("done", ""),
        "1-refuse": ("failed", "fedvlp: error: a bad root"),
        "2-nothing": ("failed", "here with 1 threads"),
    }
    assert jobs[0].log.read_text() == f"$ fedvlp end '{jobs[0].folder}'\nhere with 1 threads\n"
    assert {"--time=1:00", "--requeue", "--parsable", "--array=0-2%2"} <= set(stub.arguments("101"))
    assert json.loads(array.path.read_text()) == {"0-end": "101_0", "1-refuse": "101_1", "2-nothing": "101_2"}


def test_the_next_call_finds_what_is_queued(stub, queue):
    (stub.folder / "held").touch()
    jobs = jobs_of(queue().folder, "end", "end")
    queue().submit(jobs, None)
    array = queue()
    assert array.states() == {"0-end": "waiting", "1-end": "waiting"}
    assert array.cancel_command(["0-end", "1-end"]) == "scancel 101_0 101_1"
    (array.folder / "slurm-101_1.txt").write_text("slurmstepd: error: *** CANCELLED DUE TO TIME LIMIT ***\n")
    stub.end("101_1", "TIMEOUT")
    assert array.states() == {"0-end": "waiting"}
    (stub.folder / "held").unlink()
    reports = last_reports(array, jobs)
    assert reports["0-end"] == ("done", "")
    assert reports["1-end"] == ("failed", "slurmstepd: error: *** CANCELLED DUE TO TIME LIMIT ***")


def test_errors_of_slurm_are_shown(stub, queue, monkeypatch):
    (stub.folder / "refuse").write_text("sbatch: error: invalid partition specified: gpuu\n")
    jobs = jobs_of(queue().folder, "end")
    with pytest.raises(UserError, match="refuses: sbatch: error: invalid partition specified: gpuu"):
        queue().submit(jobs, None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="Slurm's command squeue can't be called"):
        queue().states()


def test_a_queue_that_does_not_answer_for_a_while(stub, queue, caplog, monkeypatch):
    jobs = jobs_of(queue().folder, "end")
    array = queue()
    array.submit(jobs, None)
    (stub.folder / "silent").write_text("slurm_load_jobs error: Unable to contact slurm controller")
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) > 1:
            (stub.folder / "silent").unlink(missing_ok=True)
        pause(0.02)

    pause = time.sleep
    monkeypatch.setattr("fedvlp.tools.sweep.slurm.time.sleep", sleep)
    assert last_reports(array, jobs)["0-end"] == ("done", "")
    assert "The queue can't be looked at now." in caplog.text


def test_a_damaged_file_is_not_an_empty_queue(tmp_path):
    (tmp_path / "slurm.json").write_text('{"a": ')
    with pytest.raises(UserError, match=r"slurm\.json is damaged"):
        SlurmArray(tmp_path, SlurmOptions({}))


def test_launchers():
    assert read_launcher("local") is None
    assert read_launcher("slurm") == SlurmOptions({})
    options = read_launcher({"name": "slurm", "cpus_per_task": 3, "time": "1-02:00:00", "setup": "module load"})
    assert options == SlurmOptions({"cpus_per_task": "3", "time": "1-02:00:00"}, ("module load",))
    assert options.arguments == ["--cpus-per-task=3", "--time=1-02:00:00"]


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        ("slrum", "local, slurm or a mapping"),
        ({"partition": "gpu"}, "local, slurm or a mapping"),
        ({"name": "slurm", "partitions": "gpu"}, "no option 'partitions'; it has account, "),
        ({"name": "local", "time": "1:00"}, "local has no option 'time'"),
        ({"name": "slurm", "time": 14400}, "in quotes"),
    ],
)
def test_impossible_launchers(launcher, message):
    with pytest.raises(UserError, match=message):
        read_launcher(launcher)
