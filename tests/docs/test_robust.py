"""The page on aggregators, add-ons and attacks: its tables match the classes."""

import dataclasses
import re

import pytest

import fedvlp.tools.attacks
from fedvlp.core.aggregation.base import Aggregator
from fedvlp.training.add_ons import PUBLIC
from fedvlp.training.cohort import Attack
from tests.helpers.documents import ROOT, Document, names

PAGE = Document(ROOT / "docs" / "robust.md")


def rows(section):
    """Map the first column of a section's table to the other columns."""
    found = {}
    for first, *others in PAGE.rows(f"## {section}"):
        for name in names(first):
            found[name] = set(re.findall(r"`(\w+)`", "".join(others)))
    return found


def test_every_aggregator_is_in_the_table():
    classes = {name: getattr(fedvlp, name) for name in fedvlp.__all__ if name[0].isupper()}
    aggregators = {name for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, Aggregator)}
    assert set(rows("Aggregators")) == aggregators - {"Aggregator"}


def test_every_add_on_is_in_the_table_with_its_options():
    found = rows("Add-ons of local training")
    assert found.keys() == PUBLIC.keys()
    for name, options in found.items():
        assert options == {field.name for field in dataclasses.fields(PUBLIC[name])}, name


def test_every_attack_is_in_the_table():
    assert set(rows("Attacks")) == set(fedvlp.tools.attacks.__all__)


@pytest.mark.parametrize(
    ("section", "base", "common"),
    [("Aggregators", Aggregator, {"inner"}), ("Attacks", Attack, {"clients", "seed"})],
)
def test_options_in_the_tables_match_the_classes(section, base, common):
    for name, options in rows(section).items():
        kind = getattr(fedvlp, name)
        assert issubclass(kind, base)
        fields = {field.name for field in dataclasses.fields(kind)}
        named = options | common
        assert options <= fields | {"byzantine"}, name
        assert fields - common - named <= {"size", "opacity", "byzantine"}, name
