"""Runs as jobs of Slurm, whose commands the tests stand in for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvlp.tools.sweep import Job, QueuedJobs, SlurmOptions, SlurmQueue, Status, read_launcher
from fedvlp.tools.sweep.slurm_queue import SlurmError
from fedvlp.utils.errors import UserError
from tests.helpers.slurm_stub import SlurmStub, slurm

RUN = """
echo "$WORD in job $SLURM_JOB_ID"
case $1 in
    end) mkdir "$2/2020-01-01"; echo '{}' > "$2/2020-01-01/summary.json" ;;
    refuse) echo "fedvlp: error: a bad root" >&2; exit 1 ;;
    wait) exec sleep 600 ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStub]:
    monkeypatch.setattr("fedvlp.tools.sweep.slurm_runner.SECONDS_BETWEEN_LOOKS", 0.02)
    with slurm(tmp_path / "cluster") as stub:
        yield stub


class Sweep:
    """A sweep whose runs end as their first word says, and what was reported of them."""

    def __init__(self, tmp_path: Path, *words: str) -> None:
        self.folder = tmp_path / "50% of runs"
        self.folder.mkdir(exist_ok=True)
        self.script = tmp_path / "run.sh"
        self.script.write_text(RUN)
        folders = [self.folder / f"{number}-{word}" for number, word in enumerate(words)]
        self.jobs = [Job(path.name, (word, str(path)), path) for path, word in zip(folders, words, strict=True)]
        self.reports: dict[str, list[Status]] = {job.name: [] for job in self.jobs}

    def queued(self, most: int = 9) -> QueuedJobs:
        """The jobs as a new call of the command finds them."""
        queue = SlurmQueue(self.folder, SlurmOptions({"time": "1:00"}, ("export WORD=here",)), ("sh", str(self.script)))
        missing = [job for job in self.jobs if not job.is_done]
        return QueuedJobs(missing, queue, lambda job, status: self.reports[job.name].append(status), most)

    def made(self) -> None:
        """Makes what is missing."""
        queued = self.queued()
        queued.begin()
        queued.wait(lambda: None)

    @property
    def last(self) -> list[str]:
        """The last state of each run."""
        return [reports[-1].state for reports in self.reports.values()]


def wait_for(what: Callable[[], object]) -> None:
    """Waits until something is so."""
    for _ in range(1000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("It took too long.")


def test_each_run_is_a_job(stub, tmp_path):
    sweep = Sweep(tmp_path, "end", "refuse", "nothing")
    sweep.made()
    assert sweep.last == ["done", "failed", "failed"]
    ends = [reports[-1] for reports in sweep.reports.values()]
    assert [status.error for status in ends] == ["", "fedvlp: error: a bad root", "It ended without a summary.json."]
    assert ends[0].seconds == 65
    first = sweep.jobs[0]
    assert first.log.read_text() == f"$ fedvlp end '{first.folder}'\nhere in job 101\n"
    assert {"--time=1:00", "--requeue", "--parsable", "--job-name=0-end"} <= set(stub.arguments("101"))
    assert json.loads((sweep.folder / "slurm.json").read_text()) == {}


def test_what_is_in_the_queue_is_not_submitted_again(stub, tmp_path):
    (stub.folder / "held").touch()
    sweep = Sweep(tmp_path, "end", "wait")
    sweep.queued().begin()
    assert sweep.last == ["waiting", "waiting"]
    queued = sweep.queued()
    queued.begin()
    assert (queued.number_found, stub.numbers) == (2, ["101", "102"])
    (stub.folder / "held").unlink()
    wait_for(lambda: (stub.folder / "101.state").read_text() == "COMPLETED\n")
    wait_for(sweep.jobs[1].log.exists)
    sweep.queued().begin()
    assert sweep.last[1] == "running"
    stub.end("102", "TIMEOUT")
    queued.wait(lambda: None)
    assert sweep.last == ["done", "interrupted"]
    assert sweep.reports["1-wait"][-1].error == "Slurm ended it: TIMEOUT."
    assert stub.numbers == ["101", "102"]


def test_the_next_call_says_how_jobs_ended_and_submits_them_again(stub, tmp_path):
    sweep = Sweep(tmp_path, "wait", "wait")
    sweep.queued().begin()
    wait_for(lambda: all(job.log.exists() for job in sweep.jobs))
    stub.end("101", "OUT_OF_MEMORY")
    stub.end("102", "CANCELLED by 1000")
    (stub.folder / "forgotten").touch()  # by squeue; sacct still knows
    assert sweep.queued().number_found == 0
    sweep.queued().begin()
    states = [[status.state for status in reports] for reports in sweep.reports.values()]
    assert states == [["waiting", "failed", "waiting"], ["waiting", "interrupted", "waiting"]]
    assert "--slurm.mem" in sweep.reports["0-wait"][1].error
    assert stub.numbers == ["101", "102", "103", "104"]


def test_no_more_jobs_than_the_cluster_or_the_user_allows(stub, tmp_path, caplog):
    (stub.folder / "held").touch()
    sweep = Sweep(tmp_path, "end", "end", "end")
    queued = sweep.queued(most=2)
    queued.begin()
    assert stub.numbers == ["101", "102"]
    (stub.folder / "refuse").write_text("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    queued.most = 3
    queued._submit()
    assert "1 runs are not in the queue yet" in caplog.text
    (stub.folder / "refuse").unlink()
    (stub.folder / "held").unlink()
    queued.wait(lambda: None)
    assert (sweep.last, stub.numbers) == (["done"] * 3, ["101", "102", "103"])


def test_what_slurm_refuses_is_said_in_its_words(stub, tmp_path, monkeypatch):
    (stub.folder / "refuse").write_text("sbatch: error: invalid partition specified: gpuu\n")
    with pytest.raises(SlurmError, match="refuses: sbatch: error: invalid partition specified: gpuu"):
        Sweep(tmp_path, "end").made()
    with monkeypatch.context() as patched:
        patched.setenv("PATH", "")
        with pytest.raises(SlurmError, match="Slurm's command sbatch can't be called"):
            Sweep(tmp_path, "end").made()


def test_a_queue_that_cannot_be_looked_at_for_a_while(stub, tmp_path, caplog):
    (stub.folder / "held").touch()
    sweep = Sweep(tmp_path, "end")
    queued = sweep.queued()
    queued.begin()
    (stub.folder / "silent").write_text("slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(SlurmError, match="Unable to contact"):
        sweep.queued()
    queued._look()
    assert "can't be looked at now" in caplog.text
    (stub.folder / "silent").unlink()
    (stub.folder / "held").unlink()
    queued.wait(lambda: None)
    assert sweep.last == ["done"]


def test_damaged_numbers_of_jobs_are_not_taken_for_none(tmp_path):
    (tmp_path / "slurm.json").write_text('{"a": ')
    with pytest.raises(UserError, match="not known which jobs are queued"):
        SlurmQueue(tmp_path, SlurmOptions({}))


def test_launchers():
    assert read_launcher("local") is None
    assert read_launcher("slurm") == SlurmOptions({})
    found = read_launcher(
        {"name": "slurm", "cpus_per_task": 3, "time": "1-02:00:00", "mem": None, "setup": "module load"}
    )
    assert found == SlurmOptions({"cpus_per_task": "3", "time": "1-02:00:00"}, ("module load",))
    assert (found.threads, SlurmOptions({}).threads) == (3, 1)
    assert found.arguments == ["--cpus-per-task=3", "--time=1-02:00:00"]


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        ("slrum", "local, slurm or a mapping"),
        ({"partition": "gpu"}, "local, slurm or a mapping"),
        ({"name": "slurm", "partitions": "gpu"}, "no option 'partitions'; it has account, "),
        ({"name": "local", "time": "1:00"}, "local has no option 'time'"),
        ({"name": "slurm", "time": 14400}, "time in quotes"),
        ({"name": "slurm", "gpus_per_node": 2}, "a run uses one GPU"),
        ({"name": "slurm", "cpus_per_task": True}, "whole number of at least 1"),
        ({"name": "slurm", "mem": "1G\n2"}, "a word or a number"),
        ({"name": "slurm", "setup": {"a": 1}}, "lines of shell"),
    ],
)
def test_launchers_that_are_none(launcher, message):
    with pytest.raises(UserError, match=message):
        read_launcher(launcher)
