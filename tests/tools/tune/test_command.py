"""``fedvlp tune`` as users call it; held-out images are not used for the choice."""

import json

import pytest

from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.tools.compare.tables import tables
from fedvlp.tools.sweep.jobs import Status
from fedvlp.tools.tune.choice import Choice
from tests.helpers.records import make_record, write_summary
from tests.helpers.stand_in import make_here


@pytest.fixture
def command(short_run, monkeypatch):
    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", make_here)
    axes = ["--models=promptfl", "--held_out=ink", "--seeds=0,1", "--search=model.optimizer.lr=0.001,0.1"]
    return ["tune", "--config=data/folders", *axes, *short_run]


def test_the_choice_is_run_with_all_seeds_and_recorded_in_summaries(command, tmp_path, capsys):
    output = tmp_path / "tuned"
    assert main([*command, f"--output={output}"]) == 0
    printed = capsys.readouterr().out
    assert "promptfl (best of 2)" in printed
    assert "oracle, not allowed" in printed
    tuned = json.loads((output / "tune.json").read_text())
    (choice,) = tuned["choices"]
    assert choice["trials"] == [["--model.optimizer.lr=0.001"], ["--model.optimizer.lr=0.1"]]
    best = max(choice["validation"])
    records = [load_record(path.parent) for path in (output / "chosen").rglob("summary.json")]
    assert sorted(record.seed for record in records) == [0, 1]
    assert len({record.settings for record in records}) == 1
    assert {record.tuning["trials"] for record in records} == {2}
    assert [record.tuning["chosen"] for record in records] == [choice["trials"][choice["validation"].index(best)]] * 2
    (first,) = (record for record in records if record.seed == 0)
    assert first.last["validation"] == pytest.approx(best)
    (table,) = tables(records)
    assert "promptfl (best of 2)" in table.runs


def test_a_stopped_search_resumes_to_the_same_table(command, tmp_path, capsys, monkeypatch):
    job_names = []

    def fake_runs(jobs, workers, report, devices):
        for job in jobs:
            job_names.append(job.name)
            rate = float(job.arguments[-6].partition("=")[2])
            row = {"validation": 50.0 + rate, "held_out": 40.0, "held_out/ink": 40.0}
            record = make_record(held_out="ink", seed=job.axes["seed"], accuracy={"last round (3)": row})
            write_summary(job.folder / "time", record)
            report(job, Status("done", 1.0))
            if len(job_names) == 1 and job.folder.is_relative_to(tmp_path / "stopped"):
                raise KeyboardInterrupt

    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", fake_runs)
    assert main([*command, f"--output={tmp_path / 'whole'}"]) == 0
    whole = capsys.readouterr().out.partition("method")[2]
    job_names.clear()
    command.append(f"--output={tmp_path / 'stopped'}")
    assert [main(command), main(command)] == [130, 0]
    assert capsys.readouterr().out.endswith(whole)
    assert len(set(job_names)) == len(job_names) == 3


def test_the_first_of_the_best_trials_is_chosen_and_its_gain_is_over_the_median():
    trials = [("--model.prompt_length=1",), ("--model.prompt_length=2",), ("--model.prompt_length=4",)]
    choice = Choice("promptfl", "ink", trials, validation=[60.0, 70.0, 70.0], compared=[50.0, 40.0, 55.0])
    assert choice.chosen == 1
    assert (choice.gain(choice.validation), choice.gain(choice.compared)) == (0, -10)


def test_a_wrong_option_is_found_before_the_first_run(command, tmp_path, capsys):
    wrong = [word for word in command if not word.startswith("--search")]
    output = tmp_path / "tuned"
    assert main([*wrong, "--search=model.prompt_length=4,many", f"--output={output}"]) == 1
    assert "prompt_length" in capsys.readouterr().err
    assert not output.exists()
