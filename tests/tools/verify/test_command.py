"""``fedvlp verify`` accepts a correct entry and rejects entries with other claims."""

import json
import shutil

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.tools.verify.entry import check_equal
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors, write_tensors

pytestmark = pytest.mark.usefixtures("home")
FILES = ("config.yaml", "prompts.safetensors", "summary.json")


@pytest.fixture
def entry(finished_run, tmp_path):
    """Copy the files of a run that an entry needs."""
    (tmp_path / "entry").mkdir()
    for name in FILES:
        shutil.copy(finished_run / name, tmp_path / "entry")
    return tmp_path / "entry"


def change(path, change_content):
    """Change a file's content as JSON or YAML."""
    load, dump = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    content = load(path.read_text())
    change_content(content)
    path.write_text(dump(content))


def rejection(capsys, *arguments):
    """Verify an entry that must be rejected, and return the error."""
    assert main(["verify", *map(str, arguments)]) == 1
    printed = capsys.readouterr()
    assert "verified" not in printed.out
    return printed.err


def test_a_correct_entry_is_verified_and_ranked(entry, capsys):
    page = entry.parent / "site" / "index.html"
    nothing = entry.parent / "nothing"
    assert main(["verify", str(entry), str(nothing), "-o", str(page), "--title", "All < of us"]) == 1
    printed = capsys.readouterr()
    first, second, third = printed.out.splitlines()
    assert first.startswith(f"{entry}: verified: PromptFL, held-out domain: photo; one client per domain: validation ")
    assert second.startswith("  not verified: rounds, configs, seconds, versions")
    assert third == f"{page}: 1 entries"
    assert f"{nothing}: refused: It lacks summary.json" in printed.err
    assert sorted(path.name for path in entry.iterdir()) == list(FILES)
    text = page.read_text()
    assert "<h1>All &lt; of us</h1>" in text
    assert f"{nothing}: refused" in text
    assert "★ highest" in text
    assert ">best<" not in text  # a best round is not verified


def test_other_prompts_are_rejected(entry, capsys):
    file = entry / "prompts.safetensors"
    tensors, header = read_tensors(file)
    write_tensors(file, {name: -tensor for name, tensor in tensors.items()}, header)
    assert ".last round" in rejection(capsys, entry)
    write_tensors(file, tensors, {**header, "model": {**header["model"], "class_path": "fedvlp.KgCoOp"}})
    assert "belongs to another model" in rejection(capsys, entry)


def test_cheap_checks_come_before_the_evaluation(entry, capsys):
    assert "split: the summary has" in rejection(capsys, entry, "--data.split_seed=1")
    change(entry / "summary.json", lambda summary: summary.update(rounds=80))
    assert "has 80 rounds, but its config 1" in rejection(capsys, entry)
    change(
        entry / "config.yaml", lambda config: config["model"]["init_args"].update(optimizer={"class_path": "os.system"})
    )
    assert "needs code that is not part of fedvlp: 'os.system'" in rejection(capsys, entry)


def test_the_tolerance_applies_only_to_accuracies(entry, capsys):
    def round_off(summary):
        for row in summary["accuracy"].values():
            row["held_out"] = float(round(row["held_out"]))

    change(entry / "summary.json", round_off)
    assert main(["verify", str(entry), "--tolerance", "0.5"]) == 0
    capsys.readouterr()
    change(entry / "config.yaml", lambda config: config["trainer"]["local"].update(steps=7))
    assert "training.local.steps: the summary has null, found 7" in rejection(capsys, entry, "--tolerance", "20")


def test_each_differing_value_is_named():
    claimed = {"model": {"init_args": {"clip": "here", "length": 4}}, "betas": [0.9], "split": "12ab", "rows": {}}
    found = {"model": {"init_args": {"clip": {"name": "there"}, "length": 4}}, "betas": (0.9,), "split": "12ab"}
    check_equal(claimed, found, "")
    check_equal({"accuracy": 60.005}, {"accuracy": 60.0}, "", tolerance=0.01)
    claimed |= {"betas": [0.95], "prize": "first", "last": 60.005}
    with pytest.raises(UserError) as raised:
        check_equal(claimed, found | {"seed": 0, "last": 60.0}, "It differs", tolerance=0.001)
    assert str(raised.value).split("; ") == [
        "betas.0: the summary has 0.95, found 0.9",
        "last: the summary has 60.005, found 60.0",
        'prize: the summary has "first", found null',
        "seed: the summary has null, found 0. It differs. Differences: 4.",
    ]
