"""Every value of a summary, left out or of another sort: one error that names it."""

from __future__ import annotations

import copy
import json

import pytest

from fedvlp.results import load_record
from fedvlp.results.record import OPTIONAL_VALUES, VALUES
from fedvlp.utils.errors import UserError
from tests.results.test_record import write_run
from tests.results.test_record_fields import SUMMARY

LEFT_OUT = object()
LISTS = ("held_out", "data.domains", "data.classes", "data.new_classes", "data.targets")


def changed(summary, place, value):
    """A summary with one value replaced or left out."""
    summary = copy.deepcopy(summary)
    holder = summary
    for name in place[:-1]:
        holder = holder[name]
    if value is LEFT_OUT:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return summary


@pytest.mark.parametrize("name", VALUES)
def test_a_summary_without_a_value_says_which(tmp_path, name):
    path = write_run(tmp_path / "run") / "summary.json"
    path.write_text(json.dumps(changed(SUMMARY, name.split("."), LEFT_OUT)))
    with pytest.raises(UserError, match=f"lacks {name}"):
        load_record(tmp_path / "run")


@pytest.mark.parametrize("name", [*VALUES, *OPTIONAL_VALUES])
def test_a_value_of_another_type_is_named(tmp_path, name):
    path = write_run(tmp_path / "run") / "summary.json"
    wrong = {} if name in LISTS else [[]]
    path.write_text(json.dumps(changed(SUMMARY, name.split("."), wrong)))
    with pytest.raises(UserError, match=f"its {name} is of another type"):
        load_record(tmp_path / "run")
