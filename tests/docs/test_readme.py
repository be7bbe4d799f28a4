"""The README's commands, its table and its example of a method."""

import json
import re
import runpy

import pytest

from fedvlp.results.rounds import accuracy_columns
from tests.helpers.desk import QUICKSTART
from tests.helpers.documents import README, ROOT
from tests.helpers.page_commands import fedvlp_lines

TEXT = README.text
refreshed = runpy.run_path(str(ROOT / "docs" / "_scripts" / "refresh.py"))


def test_first_command_trains_and_the_table_matches_these_weights(desk):
    """`--config quickstart` is the same file, so its run is used."""
    install, fit = README.blocks("bash")[0].split("&&")[-2:]
    assert install.strip() == "pip install ."
    assert fit.strip() == "fedvlp fit --config configs/quickstart.yaml"
    rows = list(json.loads((desk.fetch(QUICKSTART) / "summary.json").read_text(encoding="utf-8"))["accuracy"].items())
    (printed,) = [code.splitlines() for code in README.blocks("text") if code.startswith("accuracy in %")]
    cells = [re.split(r"\s{2,}", line) for line in printed]
    assert len(cells[0]) == 1 + len(accuracy_columns(rows))
    titles = ["zero-shot CLIP", "class means", "last round", "best on source validation"]
    assert [row[0].split(" (")[0] for row in cells[2:]] == titles
    measured = [rows[0][1][name] for name in accuracy_columns(rows)]
    assert [float(cell) for cell in cells[2][1:]] == pytest.approx(measured, abs=1.5), (
        "the README's table is of other weights or images: run its first command, then docs/_scripts/refresh.py"
    )


def test_refreshing_the_table_replaces_it(desk):
    run = desk.fetch(QUICKSTART)
    once = refreshed["with_table"](TEXT, run)
    assert once.count("accuracy in %  ") == TEXT.count("accuracy in %  ") == 1
    assert "last round (1)" in once
    assert refreshed["with_table"](once, run) == once


def test_the_method_is_a_file_that_is_trained():
    assert list(README.files()) == ["proximal.py"]
    assert [line for line in fedvlp_lines() if "proximal.ProximalPrompt" in line]
