"""``fedvlp verify``: a good entry passes, and one that claims something else does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from fedvlp.commands.cli import main

ENTRIES = Path(__file__).parents[3] / "experiments/leaderboard/entries/styled_shapes"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def entry(tmp_path):
    """A copy of a good entry."""
    return Path(shutil.copytree(ENTRIES / "promptfl/photo-0", tmp_path / "entry"))


def change(path, change_content):
    """Changes a file's content as JSON or YAML."""
    load, dump = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    content = load(path.read_text())
    change_content(content)
    path.write_text(dump(content))


def refused(capsys, *arguments):
    """What is said of an entry that is refused."""
    assert main(["verify", *map(str, arguments)]) == 1
    said = capsys.readouterr()
    assert "verified" not in said.out
    return said.err


def test_a_good_entry_is_verified(entry, capsys):
    assert main(["verify", str(entry)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{entry}: verified: PromptFL, held-out domain: photo; one client a domain: validation ")
    assert second.startswith("  not measured again: rounds, seconds, features, versions")
    assert sorted(path.name for path in entry.iterdir()) == ["config.yaml", "prompts.safetensors", "summary.json"]


def test_other_prompts_of_the_same_method_are_refused(entry, capsys):
    shutil.copyfile(ENTRIES / "promptfl/sketch-0/prompts.safetensors", entry / "prompts.safetensors")
    assert "accuracy.last round.held_out/photo: the summary says" in refused(capsys, entry)


def test_prompts_of_another_method_are_refused(entry, capsys):
    shutil.copyfile(ENTRIES / "trip/photo-0/prompts.safetensors", entry / "prompts.safetensors")
    assert "belongs to another model" in refused(capsys, entry)


@pytest.mark.parametrize("option", ["--data.split_seed=1", "--data.held_out=sketch"])
def test_another_split_is_refused(entry, capsys, option):
    said = refused(capsys, entry, option)
    assert "the summary says" in said
    assert "split: " in said or "held_out[0]: " in said


def test_a_tolerance_lets_measured_numbers_differ_and_no_others(entry, capsys):
    def round_off(summary):
        for row in summary["accuracy"].values():
            row["held_out"] = float(round(row["held_out"]))

    change(entry / "summary.json", round_off)
    assert main(["verify", str(entry), "--tolerance", "0.5"]) == 0
    capsys.readouterr()
    change(entry / "config.yaml", lambda config: config["trainer"]["local"].update(steps=7))
    assert "training.local_steps: the summary says 4, found 7" in refused(capsys, entry, "--tolerance", "20")


def test_a_summary_of_more_rounds_than_its_config(entry, capsys):
    change(entry / "summary.json", lambda summary: summary.update(rounds=80))
    assert "says 80 rounds, and its config 8" in refused(capsys, entry)


@pytest.mark.parametrize("name", ["summary.json", "prompts.safetensors", "config.yaml"])
def test_a_missing_file(entry, capsys, name):
    (entry / name).unlink()
    assert f"refused: It lacks {name}" in refused(capsys, entry)


def test_a_config_that_names_code_of_others(entry, capsys):
    change(
        entry / "config.yaml", lambda config: config["model"]["init_args"].update(optimizer={"class_path": "os.system"})
    )
    assert "asks for code that is not fedvlp's own: 'os.system'" in refused(capsys, entry)
