"""Tables, files and options in pages match the code. test_every_command.py runs the commands."""

import csv
import dataclasses
import inspect
import json
import re
import runpy
from pathlib import Path

import fedvlp.data
import fedvlp.training.local_training
from fedvlp.commands.cli import main
from tests.helpers.desk import OWN_IMAGES, QUICKSTART, SWEEP
from tests.helpers.documents import ROOT, Document, names
from tests.helpers.page_commands import run

DOCS = ROOT / "docs"
RUN = Document(DOCS / "reading_a_run.md")
PROTOCOLS = Document(DOCS / "protocols.md")
TRAINING = Document(DOCS / "training.md")
TUTORIAL = Document(DOCS / "tutorial.md")


def command(page: Document, word: str) -> list[str]:
    """List the words after `fedvlp` of a page's only command with a certain word."""
    (words,) = [words for words in page.commands("fedvlp") if word in words]
    return words[words.index("fedvlp") + 1 :]


def test_the_table_of_files_matches_a_run_folder(desk):
    folder = desk.fetch(OWN_IMAGES)
    found: set[str] = set()
    for row in RUN.rows("# Reading a run"):
        found.update(re.findall(r"`([\w.]+/?)`", "".join(row)))
    made = {path.name + "/" * path.is_dir() for path in folder.iterdir()} - {"explanations/"}
    assert {name for name in found if re.search(r"[./]", name)} == made


def test_every_column_of_the_metrics_is_explained(desk):
    header = next(csv.reader((desk.fetch(QUICKSTART) / "metrics.csv").read_text("utf-8").splitlines()))
    explained: list[str] = []
    for row in RUN.rows("## `metrics.csv`"):
        explained += names(row[0])
    patterns = [re.compile(re.sub(r"<\w+>", "[^/]+", name)) for name in explained]
    assert not [column for column in header if not any(pattern.fullmatch(column) for pattern in patterns)]


def test_every_key_of_the_summary_is_explained(desk):
    summary = json.loads((desk.fetch(QUICKSTART) / "summary.json").read_text("utf-8"))
    explained: set[str] = set()
    for row in RUN.rows("## `summary.json`"):
        explained.update(names(row[0]))
    assert explained == summary.keys()


def test_every_event_is_explained():
    source = (ROOT / "fedvlp" / "callbacks" / "progress.py").read_text(encoding="utf-8")
    written = re.findall(
        r'"event": "(\w+)"|_write\(\s*federation,\s*"(\w+)"|event = "(\w+)" if \w+ else "(\w+)"', source
    )
    explained: set[str] = set()
    for row in RUN.rows("## `events.jsonl`"):
        explained.update(names(row[0]))
    assert explained == {name for alternatives in written for name in alternatives if name}


def test_a_stopped_run_resumes(desk, capsys):
    desk.fetch(OWN_IMAGES)
    words = ["fit", *command(RUN, "last")[1:]]
    assert run([OWN_IMAGES if word == "last" else word for word in words], desk) == 0
    assert "resuming from" in capsys.readouterr().out


def test_clients_and_protocols(desk, capsys):
    assert run([*command(PROTOCOLS, "data/icon_domains_30_clients"), "--data.num_classes=20"], desk) == 0
    description = " ".join(re.search(r"here\s+`(all domains[^`]*)`", PROTOCOLS.text).group(1).split())
    assert description in capsys.readouterr().out
    for row in PROTOCOLS.rows("## Clients"):
        fields = dataclasses.fields(getattr(fedvlp.data, row[0].strip("`")))
        assert re.findall(r"`(\w+)`", row[2]) == [field.name for field in fields]


def test_schedules(desk):
    assert run([*command(TRAINING, "--trainer.local.schedule"), "--trainer.name=scheduled"], desk) == 0
    (made,) = Path("runs/scheduled").iterdir()
    metrics = csv.DictReader((made / "metrics.csv").read_text("utf-8").splitlines())
    assert [row["learning_rate_factor"] for row in metrics] == [str(1e-5 / 0.02)]
    table = "\n".join(row[0] for row in TRAINING.rows("## Schedules and local training"))
    options = set(re.findall(r"--trainer\.local\.(\w+)", table))
    assert options == {"epochs", "steps", "schedule", "reset_optimizer", "add_ons"}
    assert options <= inspect.signature(fedvlp.LocalTraining).parameters.keys()
    for name in ("ExponentialDecay", "CosineDecay", "Constant"):
        assert name in TRAINING.text
        assert issubclass(getattr(fedvlp.training.local_training, name), fedvlp.training.local_training.Schedule)


def test_costs(desk, capsys):
    compared, one = [words[1:] for words in TRAINING.commands("cost")]
    assert main([*compared, "--format=json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["config"] for row in printed if row["phase"] == "all"] == ["trip", "plan", "promptfl"]
    assert main(one) == 0
    assert {row["config"] for row in json.loads(capsys.readouterr().out)} == {"trip"}


def test_the_tutorials_table_matches_compare(desk, capsys):
    folder = desk.fetch(SWEEP)
    assert main(command(TUTORIAL, "latex")[:4]) == 0
    assert "promptfl" in capsys.readouterr().out
    refreshed = runpy.run_path(str(DOCS / "_scripts" / "refresh.py"))
    once = refreshed["with_sweep"](TUTORIAL.text, refreshed["sweep_table"](folder))
    assert once.count("\nzero-shot CLIP ") == TUTORIAL.text.count("\nzero-shot CLIP ") == 1
    assert refreshed["with_sweep"](once, refreshed["sweep_table"](folder)) == once


def test_predictions_cover_all_images(desk):
    assert run(command(Document(DOCS / "own_images.md"), "predict"), desk) == 0
    with open("predictions.csv", newline="", encoding="utf-8") as file:
        predicted = list(csv.DictReader(file))
    assert len(predicted) == 10
    assert {row["class"] for row in predicted} <= {"cat", "dog"}
