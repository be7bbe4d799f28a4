"""The page of a folder of entries."""

from __future__ import annotations

import re
from datetime import date

from fedvlp.commands.cli import main
from fedvlp.results import find_records
from fedvlp.tools.report.page import leaderboard_page
from tests.helpers.report_runs import DOMAINS, write_run


def page_of(folder):
    """The page of all runs in a folder."""
    records, problems = find_records([folder])
    assert not problems
    return leaderboard_page(records, folder, "Ours", date(2026, 2, 1))


def rows_of(page):
    """The texts of the cells of all rows of a ranking."""
    found = []
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page):
        cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        if "round" not in cells[1:2]:
            found.append(cells)
    return found


def test_methods_stand_in_the_order_of_their_last_rounds(tmp_path):
    for place, domain in enumerate(DOMAINS):
        write_run(tmp_path, [90.0, 50.0 + place], domain, method="PLAN", parameters=7)
        write_run(tmp_path, [60.0, 70.0], domain, method="TRIP")
    first, second, third = rows_of(page_of(tmp_path))
    assert first == ["trip ★ highest", "last", "70.0", "70.0", "70.0", "70.0", "0.0", "100", "100", "800", "2"]
    assert second == ["plan", "last", "51.0", "50.0", "51.0", "52.0", "0.8", "7", "7", "56", "2"]
    assert third[:3] == ["zero-shot CLIP", "-", "40.0"]


def test_what_was_not_measured_on_every_domain_is_not_ranked(tmp_path):
    for domain in DOMAINS:
        write_run(tmp_path, [60.0], domain, method="TRIP")
    write_run(tmp_path, [99.0], "photo", method="PLAN")
    page = page_of(tmp_path)
    assert [row[0] for row in rows_of(page)] == ["trip ★ highest", "zero-shot CLIP", "plan"]
    assert "Not ranked, as columns are missing: plan." in page


def test_other_protocols_have_rankings_of_their_own(tmp_path):
    for domain in DOMAINS:
        write_run(tmp_path / "a", [60.0], domain)
        write_run(tmp_path / "b", [80.0], domain, data={"shots": 4})
    page = page_of(tmp_path)
    assert page.count("<h2>") == 2
    assert "2 tables, which must not be mixed; they differ in shots (all images | 4-shot)" in page


def test_entries_are_named_below_the_folder(tmp_path):
    for domain in DOMAINS:
        write_run(tmp_path, [60.0], domain, options={})
    page = page_of(tmp_path)
    assert "TRIP--photo-0/2026-01-31_12-00-00" in page
    assert str(tmp_path) not in page


def test_the_command_writes_the_page_and_says_what_is_left_out(tmp_path, capsys):
    entries = tmp_path / "entries"
    for domain in DOMAINS:
        write_run(entries, [60.0], domain)
    (entries / "begun").mkdir()
    (entries / "begun" / "config.yaml").touch()
    page = tmp_path / "site" / "index.html"
    assert main(["leaderboard", str(entries), "--output", str(page), "--title", "All < of us"]) == 1
    said = capsys.readouterr()
    assert said.out == f"{page}: 3 entries\n"
    assert "left out" in said.err
    assert "<h1>All &lt; of us</h1>" in page.read_text()


def test_a_folder_without_entries_is_refused(tmp_path, capsys):
    assert main(["leaderboard", str(tmp_path)]) == 1
    assert "There is no entry in" in capsys.readouterr().err
    assert main(["leaderboard", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert "is a folder" in capsys.readouterr().err
