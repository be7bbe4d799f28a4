"""Options from environment variables: only where they are asked for, and none is passed over in silence."""

from __future__ import annotations

import pytest
import yaml

from fedvlp.commands.cli import main

ON = {"JSONARGPARSE_DEFAULT_ENV": "true"}


@pytest.fixture
def environ(monkeypatch):
    """Sets variables."""

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_variables_are_options_that_the_command_line_overrides(environ, capsys):
    data = "{class_path: StyledShapes, init_args: {held_out: photo, shots: 3}}"
    environ(ON | {"PL_FIT__CONFIG": "quickstart", "PL_FIT__DATA": data, "PL_FIT__SEED_EVERYTHING": "7"})
    environ({"PL_FIT__TRAINER__ROUNDS": "9", "PL_FIT__TRAINER__COHORT_SIZE": "2", "PL_TEST__TRAINER__ROUNDS": "4"})
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--trainer.rounds=5", "--print_config"])
    assert stopped.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["class_path"] == "fedvlp.TRIP"
    assert (config["trainer"]["rounds"], config["trainer"]["cohort_size"]) == (5, 2)
    assert (config["data"]["init_args"]["held_out"], config["data"]["init_args"]["shots"]) == ("photo", 3)
    assert config["seed_everything"] == 7


def test_variables_that_nobody_asked_for_are_not_read_and_named(environ, capsys):
    environ({"PL_FIT__TRAINER__ROUNDS": "9", "PL_TEST__TRAINER__ROUNDS": "9"})
    assert main(["fit", "--config=nothing_like_it"]) == 1
    note, error = capsys.readouterr().err.splitlines()
    assert note == "fedvlp: PL_FIT__TRAINER__ROUNDS is not read; set JSONARGPARSE_DEFAULT_ENV=true to read it"
    assert "No config 'nothing_like_it'" in error


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PL_FIT__DATA__SHOTS", "3", "is no option's variable. `fedvlp fit --help` lists all. What a class takes"),
        ("PL_FIT__TRAINER__MAX_EPOCHS", "3", "is no option's variable. --trainer.rounds sets how many rounds"),
        ("PL_FIT__CONFIG", "quikstart", "No config 'quikstart': neither a file nor one of"),
    ],
)
def test_a_variable_of_no_option_is_one_error(environ, capsys, name, value, message):
    environ(ON | {name: value})
    assert main(["fit", "--model=ZeroShotCLIP"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedvlp: error: ")
    assert error.count("\n") == 1
    assert message in error
