"""The page on privacy and its study: options and epsilons match the code."""

import dataclasses
from itertools import pairwise

import pytest

from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.training.privacy_accounting import PrivacyAccount
from tests.helpers.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "privacy.md")
STUDY = Document(ROOT / "experiments" / "privacy" / "README.md")
COMMAND = next(words for words in PAGE.commands("fedvlp") if "DPFedAvg" in words)


def epsilon(clients, cohort, noise, rounds):
    return PrivacyAccount((noise,), clients, cohort, 1e-5, repeats=True).epsilon(rounds)


def test_the_page_has_the_epsilon_of_its_command():
    options = dict(pairwise(COMMAND))
    clients = int(options["--data.partition.num_clients"])
    noise = float(options["--trainer.server.aggregation.noise_multiplier"])
    account = PrivacyAccount((noise,), clients, clients, 1e-5, repeats=True)
    assert account.describe(int(options["--trainer.rounds"])) in PAGE.text


def test_every_option_is_in_the_table():
    named = {row[0].strip("`") for row in PAGE.rows("| option |")}
    assert named == {field.name for field in dataclasses.fields(DPFedAvg)} - {"seed"}


def test_epsilons_of_the_table_of_clients():
    for row in PAGE.rows("| clients | of a round"):
        clients, cohort, noise, rounds, printed = (float(cell.replace(",", "")) for cell in row)
        assert epsilon(int(clients), int(cohort), noise, int(rounds)) == pytest.approx(printed, abs=0.06)


def test_epsilons_of_the_table_of_accuracies():
    rows = [row for row in STUDY.rows("| `noise_multiplier` | epsilon") if row[0].isdecimal() and row[1] != "infinite"]
    assert len(rows) == 5
    for noise, printed, *_ in rows:
        assert epsilon(150, 150, float(noise), 8) == pytest.approx(float(printed), abs=0.05)
