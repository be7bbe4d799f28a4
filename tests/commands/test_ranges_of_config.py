"""Values of the command line that are out of range, found before anything is made of them."""

import pytest

from fedvlp.commands.cli import main, what_to_mend

START = ["fit", "--model=TRIP", "--data=StyledShapes"]


def never_called(cli):
    raise AssertionError("something was made")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.rounds=-1"], "Expected trainer.rounds of at least 0, got -1."),
        (["--seed_everything=-1"], "Expected trainer.seed of at least 0, got -1."),
        (["--seed_everything=true"], "Give the seed itself."),
        (["--trainer.name=../../x"], "Expected trainer.name that stays in its folder, or null, got '../../x'."),
        (["--model.kl_weight=.nan"], "Expected model.kl_weight to be a finite number, got nan."),
        (["--model.num_experts=1000000000000"], "Expected model.num_experts of at most 1e+06"),
        (["--model.rounds=9", "--trainer.rounds=3"], "it is trainer.rounds (3), got 9. Give --trainer.rounds."),
        (["--data.partition=Dispersed", "--data.partition.num_clients=0"], "data.partition.num_clients of at least 1"),
        (
            ["--trainer.local.schedule=ExponentialDecay", "--trainer.local.schedule.gamma=2"],
            "trainer.local.schedule.gamma in (0, 1]",
        ),
    ],
)
def test_one_error_before_anything_is_made(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("fedvlp.commands.lightning_cli.FederationCLI.instantiate_classes", never_called)
    assert main([*START, *arguments]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("fedvlp: error: Expected ")
    assert message in errors[-1]


def test_the_same_rounds_twice_are_no_mistake(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*START, "--model.rounds=3", "--trainer.rounds=3", "--print_config"])
    assert stopped.value.code == 0


def test_a_config_that_no_person_wrote(tmp_path, capsys):
    path = tmp_path / "deep.yaml"
    path.write_text("a: " + "[" * 5000)
    assert main(["fit", f"--config={path}"]) == 1
    assert "nested more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (ValueError("embedded null byte"), "NUL"),
        (ValueError("a fault of ours"), None),
        (RuntimeError("a fault of ours"), None),
        (OSError("without a file"), None),
    ],
)
def test_errors_of_the_machine(error, message):
    told = what_to_mend(error)
    assert told is None if message is None else message in told
