"""The README cannot rot: its commands and its Python run, its files exist, its numbers are those of the configs."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedvlp.data
import fedvlp.training.schedules
from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.commands.cli import main
from fedvlp.core.state import Client
from fedvlp.federation import Federation
from fedvlp.results.accuracy_table import accuracy_columns
from fedvlp.training.communication import communication_cost
from tests.conftest import METHODS, draw

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
BRIEF = ["--trainer.rounds=1", "--trainer.local_steps=2", "--trainer.enable_progress_bar=false"]
OFFLINE = ["--model.clip.name=fedvlp-tiny", "--model.clip.pretrained=auto"]


def blocks(language: str) -> list[str]:
    return [code for known, code in BLOCKS if known == language]


def commands(start: str) -> list[list[str]]:
    """All words of the commands that begin with a word, in the README's order."""
    lines = [line for code in blocks("bash") for line in code.replace("\\\n", " ").splitlines()]
    parts = [shlex.split(part) for line in lines for part in line.split("&&")]
    return [words for words in parts if start in words]


def python(word: str) -> str:
    """The one Python block that contains a word."""
    (code,) = [code for code in blocks("python") if word in code]
    return code


@pytest.fixture
def desk(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder such as the README's reader has: the configs, and images of three domains."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for domain, domain_name in enumerate(("drawing", "painting", "photo")):
        for label, class_name in enumerate(("cat", "dog")):
            folder = tmp_path / "my_images" / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(5):
                draw(domain, label, index).save(folder / f"{index}.png")
    return tmp_path


def environment() -> dict[str, str]:
    """The environment of a process that finds this package."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([".", str(ROOT)])}


def run(words: list[str]) -> None:
    """Runs a command of the README in this process, briefly."""
    arguments = words[words.index("fedvlp") + 1 :]
    on_own_images = "my_images" in arguments
    assert main([*arguments, *(OFFLINE if on_own_images else []), *BRIEF]) == 0


def newest_run(parent: str) -> Path:
    return max(Path(parent).glob("*/"))


def test_first_command_trains_and_the_table_is_of_these_weights(desk):
    first = blocks("bash")[0]
    assert "pip install ." in first
    run(next(iter(commands("fedvlp"))))
    summary = json.loads((newest_run("runs/TRIP-StyledShapes-sketch") / "summary.json").read_text(encoding="utf-8"))
    rows = list(summary["accuracy"].items())
    (printed,) = [code.splitlines() for code in blocks("text") if code.startswith("accuracy in %")]
    cells = [re.split(r"\s{2,}", line) for line in printed]
    assert len(cells[0]) == 1 + len(accuracy_columns(rows))
    assert [row[0].split(" (")[0] for row in cells[2:]] == ["zero-shot CLIP", "last round", "best on source validation"]
    measured = [rows[0][1][name] for name in accuracy_columns(rows)]
    assert [float(cell) for cell in cells[2][1:]] == pytest.approx(measured, abs=1), (
        "the README's table is of other weights or images: run its first command, then docs/refresh.py"
    )


def test_table_of_files_is_what_a_run_leaves_behind(desk):
    run(next(iter(commands("fedvlp"))))
    folder = newest_run("runs/TRIP-StyledShapes-sketch")
    table = TEXT.split("## What a run leaves behind")[1].split("\n\n")[2]
    assert set(re.findall(r"`(\w+\.\w+)`", table)) == {path.name for path in folder.iterdir() if path.is_file()}
    assert set(re.findall(r"`(\w+)/`", table)) == {path.name for path in folder.iterdir() if path.is_dir()}


def test_refreshing_the_table_replaces_it(desk):
    run(next(iter(commands("fedvlp"))))
    with_table = runpy.run_path(str(ROOT / "docs" / "refresh.py"))["with_table"]
    once = with_table(TEXT, newest_run("runs/TRIP-StyledShapes-sketch"))
    assert once.count("accuracy in %  ") == TEXT.count("accuracy in %  ") == 1
    assert "last round (1)" in once
    assert with_table(once, newest_run("runs/TRIP-StyledShapes-sketch")) == once


def test_second_command_installs_and_runs_the_tests():
    second = blocks("bash")[1]
    assert 'pip install -e ".[dev]"' in second
    assert "pytest" in second


def test_commands_on_own_images(desk, capsys):
    own = [words for words in commands("fedvlp") if "my_images" in words]
    assert len(own) == 5
    for words in own:
        run(words)
    assert "going on from" in capsys.readouterr().out
    for folder in ("TRIP-DomainFolders-drawing", "PromptFL-DomainFolders-drawing"):
        assert (newest_run(f"runs/{folder}") / "accuracy.png").is_file()


def test_clients_and_protocols(desk, capsys):
    (words,) = [words for words in commands("fedvlp") if "data/styled_shapes_30_clients" in words]
    run(words)
    said = " ".join(re.search(r"here `(all domains[^`]*)`", TEXT).group(1).split())
    assert said in capsys.readouterr().out
    table = TEXT.split("## Clients and protocols")[1].split("\n\n")[2]
    for line in table.splitlines()[2:]:
        name, _, arguments = (cell.strip() for cell in line.strip("|").split("|"))
        fields = dataclasses.fields(getattr(fedvlp.data, name.strip("`")))
        assert re.findall(r"`(\w+)`", arguments) == [field.name for field in fields]


def test_schedules(desk):
    (words,) = [words for words in commands("fedvlp") if "--trainer.schedule" in words]
    run(words)
    rows = csv.DictReader((newest_run("runs/TRIP-StyledShapes-sketch") / "metrics.csv").read_text("utf-8").splitlines())
    assert [row["learning_rate_factor"] for row in rows] == ["0.1"]
    table = TEXT.split("## Schedules and local training")[1].split("\n\n")[2]
    options = set(re.findall(r"--trainer\.(\w+)", table))
    assert options == {"local_epochs", "local_steps", "schedule", "reset_optimizer"}
    assert options <= inspect.signature(Federation).parameters.keys()
    for name in ("ExponentialDecay", "CosineDecay", "Constant"):
        assert f"`{name}`" in table or f"schedule {name}" in table
        assert issubclass(getattr(fedvlp.training.schedules, name), fedvlp.training.schedules.Schedule)


def test_costs(desk, capsys):
    compared, one = [words[1:] for words in commands("cost")]
    assert main([*compared, "--format=json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["config"] for row in rows if row["phase"] == "all"] == ["trip", "plan", "promptfl"]
    assert main(one) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_sweep_and_what_becomes_of_it(desk, capsys):
    (words,) = commands("sweep")
    short = [word.replace("zero_shot,promptfl,trip", "zero_shot,promptfl").replace("0,1,2", "0") for word in words[1:]]
    assert main([*(word.replace("all", "sketch") for word in short), *BRIEF]) == 0
    compared, printed = [words[1:] for words in commands("compare")]
    assert main(compared) == 0
    assert "PromptFL" in capsys.readouterr().out
    assert main(printed) == 0
    assert {"TRIP", "PLAN"} <= set(capsys.readouterr().out.split())
    (report,) = commands("report")
    assert main(report[1:]) == 0
    assert Path("report.html").is_file()
    refreshed = runpy.run_path(str(ROOT / "docs" / "refresh.py"))
    once = refreshed["with_sweep"](TEXT, refreshed["sweep_table"](Path("runs/first")))
    assert once.count("zero-shot CLIP  -") == TEXT.count("zero-shot CLIP  -") == 1
    assert refreshed["with_sweep"](once, refreshed["sweep_table"](Path("runs/first"))) == once


def test_explains_a_run(desk):
    run(next(iter(commands("fedvlp"))))
    (words,) = commands("explain")
    trained = newest_run("runs/TRIP-StyledShapes-sketch")
    words = [re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", trained.name, word) for word in words]
    assert main([*words[1:], "--num_images=1", "--most_points=40"]) == 0
    assert (trained / "explanations" / "captions.json").is_file()


def test_data_check(desk):
    check, fit = [words for words in commands("fedvlp") if "datasets/PACS" in words]
    assert main(check[1:]) == 1, "there is no such folder here"
    assert main([*fit[1:], *OFFLINE, *BRIEF]) == 1


def test_predicts_from_prompts(desk):
    fit = next(words for words in commands("fedvlp") if "my_images" in words)
    run(fit)
    (words,) = commands("predict")
    trained = newest_run("runs/TRIP-DomainFolders-drawing")
    words = [re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", trained.name, word) for word in words]
    assert main(words[1:]) == 0
    with open("predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert {row["class"] for row in rows} <= {"cat", "dog"}


def test_weights_and_biases_offline(desk):
    (words,) = [words for words in commands("fedvlp") if "loggers/wandb" in words]
    done = subprocess.run(
        [sys.executable, "-m", *words, *BRIEF], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "failed and is left out" not in done.stdout
    assert list(Path("wandb").glob("offline-run-*"))


def test_new_method_in_one_file(desk):
    Path("proximal.py").write_text(python("class ProximalPrompt"), encoding="utf-8")
    (config,) = blocks("yaml")
    Path("proximal.yaml").write_text(config, encoding="utf-8")
    (words,) = [words for words in commands("fedvlp") if "proximal.yaml" in words]
    variable, program, *arguments = words
    assert (variable, program) == ("PYTHONPATH=.", "fedvlp")
    command = [
        sys.executable,
        "-c",
        "import sys; from fedvlp.commands.cli import main; sys.exit(main())",
        *arguments,
        *BRIEF,
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((newest_run("runs/ProximalPrompt-StyledShapes-sketch") / "summary.json").read_text("utf-8"))
    assert summary["communication_per_client_and_round"]["upload_parameters"] > 0
    assert "zero-shot CLIP" in summary["accuracy"]


@pytest.mark.filterwarnings("default")  # a plain Trainer warns of few workers, and of deprecated calls of its own
@pytest.mark.parametrize(
    ("word", "shorter"),
    [
        ("Federation(rounds=3)", {"rounds=3": "rounds=1, local_steps=2"}),
        ("trainer.test", {"max_epochs=3": "max_steps=2, limit_val_batches=1, limit_test_batches=1"}),
        ("ImageFolder(", {"range(3)": "range(1)"}),
    ],
    ids=["federation", "central", "plain"],
)
def test_python_blocks(desk, word, shorter):
    code = python(word)
    for long, short in shorter.items():
        assert code.count(long) == 1
        code = code.replace(long, short)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "README.md", "exec"), names)
    if word == "ImageFolder(":
        assert tuple(names["probabilities"].shape) == (1, 2)


def test_every_python_block_is_tested():
    assert len(blocks("python")) == 4


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`fedvlp ([^`]*)`", TEXT))))
def test_commands_in_the_text(command, capsys):
    try:
        code = main(shlex.split(command))
    except SystemExit as stop:  # what asks for help ends so
        code = stop.code
    assert code == 0
    assert capsys.readouterr().out


@pytest.fixture(scope="module")
def vit():
    """Of which only shapes matter."""
    return load_clip(CLIPSpec("ViT-B-16", "random"))


@pytest.mark.parametrize("method", METHODS)
def test_table_of_methods(build, vit, method):
    """With ViT-B/16, and as many domains, with a client each, as the row says; three if it says nothing."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith("|") and f"`methods/{method}`" in line]
    model = build(method).model
    options = {name: model.hparams[name] for name in inspect.signature(type(model)).parameters if name in model.hparams}
    number = 6 if "six domains" in line else 3
    counts = {"domains": [f"domain {index}" for index in range(number)], "num_clients": number}
    module = type(model)(**options | {name: counts[name] for name in counts if name in options} | {"clip": vit})
    cost = communication_cost(module, [Client(i, i, 10) for i in range(number)]).rows(rounds=1)[-1]
    sent = line.split("|")[3].strip()
    received = re.search(r"([\d,]+)(?: are)? received", line)
    assert f"{cost['upload_parameters']:,}" == sent
    assert f"{cost['download_parameters']:,}" == (received.group(1) if received else sent)


def test_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
