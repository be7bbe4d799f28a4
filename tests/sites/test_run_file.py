"""Which sites a run had, read back where it goes on."""

import json

import pytest

from fedvlp.sites.run_file import KnownSites, read_sites_file
from fedvlp.utils.errors import UserError


def test_no_run_has_no_sites():
    assert read_sites_file(None) == KnownSites()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"run": "../x", "sites": {}}', '{"run": "x", "sites": {"a": {}}}', '{"run": 3, "sites": {}}'],
)
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "sites.json").write_text(text)
    with pytest.raises(UserError, match="no run of sites that can go on"):
        read_sites_file(tmp_path)


def test_a_run_of_a_simulation_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run of sites"):
        read_sites_file(tmp_path)


def test_what_was_written_comes_back(tmp_path):
    facts = {"classes": ["x"], "counts": {"train": 3}, "images": "i", "split": "s", "versions": {"fedvlp": "1"}}
    (tmp_path / "sites.json").write_text(json.dumps({"run": "abc", "sites": {"ink": facts}}))
    found = read_sites_file(tmp_path)
    assert found.run == "abc"
    assert found.facts["ink"].classes == ("x",)
    assert found.facts["ink"].counts == {"train": 3}
