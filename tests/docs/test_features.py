"""The table of features: each row says yes, partly or no, and leads to what shows it; options and commands exist."""

from __future__ import annotations

import re

import pytest

from fedvlp.commands.cli import COMMANDS
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.utils.signatures import constructor_arguments
from tests.helpers.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "features.md")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.text.splitlines()
    if line.startswith("|") and not line.startswith(("| what |", "|---"))
]
LINK = re.compile(r"\]\([^)]+\)")
TAKES = {"trainer": Federation, "data": FederatedDataModule}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_says_whether_and_leads_to_what_shows_it(row):
    feature, there, shown = row
    assert feature
    assert there in ("yes", "partly", "no")
    assert LINK.search(shown)
    assert there == "yes" or shown.endswith("."), "what is not there has a reason, which is a sentence"


def test_no_feature_stands_twice():
    features = [feature for feature, _, _ in ROWS]
    assert len(features) > 40
    assert len(set(features)) == len(features)


def test_commands_and_options_exist():
    commands = set(re.findall(r"`fedvlp (\w+)", PAGE.text))
    assert commands
    assert commands <= {command.name for command in COMMANDS}
    options = set(re.findall(r"--(trainer|data)\.(\w+)", PAGE.text))
    assert not [f"{group}.{name}" for group, name in options if name not in constructor_arguments(TAKES[group])]
