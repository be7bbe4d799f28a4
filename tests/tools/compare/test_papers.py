import csv
import re

import pytest

from fedvlp.core.roles import CENTRALISED, PROTOCOLS
from fedvlp.tools.compare.papers import (
    BACKBONES,
    DATASETS,
    FOLDER,
    all_footnotes,
    dataset_key,
    main_tables,
    matching_rows,
    matching_tables,
    paper_text,
    papers,
    printed_tables,
)
from fedvlp.tools.compare.tables import tables
from fedvlp.utils.errors import UserError
from tests.helpers.records import make_record

DOMAINS = {
    "pacs": {"art_painting", "cartoon", "photo", "sketch"},
    "office_home": {"art", "clipart", "product", "real_world"},
    "vlcs": {"caltech101", "labelme", "voc2007", "sun09"},
    "domainnet": {"clipart", "infograph", "painting", "quickdraw", "real", "sketch"},
    "pacs+office_home+vlcs": set(),  # the column of averages in TRIP's Table VI
}
with (FOLDER / "numbers.csv").open(newline="", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def table_of(paper, number, dataset):
    (found,) = [t for t in printed_tables() if (t.paper, t.table, t.dataset) == (paper, number, dataset)]
    return found


def rows_of(text):
    return text.frame.to_numpy().tolist()


def printed_methods():
    names = set()
    for table in printed_tables():
        names.update(row.method for row in table.rows)
    return names


def test_every_number_uses_known_keys():
    assert len(ROWS) == 1407
    for row in ROWS:
        assert row["paper"] in papers()
        assert row["dataset"] in DOMAINS
        assert row["protocol"] in PROTOCOLS
        assert row["backbone"] in BACKBONES
        assert row["shots"] in {"full", "1", "2", "4", "8", "16"}
        assert row["clients"] in {"", "3", "4", "5", "6", "20", "30"}
        assert row["domain"] in DOMAINS[row["dataset"]] | {"average"}
        assert re.fullmatch(r"\d{1,2}\.\d{1,2}", row["accuracy"])
        assert re.fullmatch(r"\d*", row["communicated_parameters"])
        assert row["method"] == row["method"].strip() != ""
    assert set(DATASETS) == set(DOMAINS) - {"pacs+office_home+vlcs"}


def test_every_footnote_belongs_to_a_printed_number():
    for note in all_footnotes():
        for name in note.tables:
            found = [t for t in printed_tables() if f"{t.paper} {t.table}" == name]
            assert any(note in table.footnotes for table in found), (name, note)
        assert set(note.methods) <= printed_methods() | {""}
        assert set(note.domains) <= {"average"}.union(*DOMAINS.values())


def test_main_tables_are_chosen_by_paper_and_data():
    names = [table.name for table in main_tables(["trip", "plan"], "pacs")]
    assert names == ["TRIP, Table I", "PLAN, Table II"]
    assert {table.dataset for table in main_tables(dataset=dataset_key("Office-Home"))} == {"office_home"}
    assert len(main_tables()) == 19
    with pytest.raises(UserError, match="trip, plan"):
        main_tables(["tripp"])
    assert dataset_key("DomainNet126") is None


def test_a_table_without_runs_has_the_printed_numbers():
    text = paper_text(table_of("plan", "III", "office_home"))
    cells = {row[0]: row for row in rows_of(text)}
    assert list(text.frame) == ["method", "backbone", "art", "clipart", "product", "real_world", "average"]
    assert cells["PLAN"][1:] == ["CLIP ViT-B/16", "86.65", "74.73", "93.47", "92.06", "86.73"]
    assert cells["FedPR"][4] == "81.29"
    (note,) = [line for line in text.notes if line.startswith("FedPR, product: ")]
    assert "91.29" in note
    assert "not obtained with fedvlp" in text.lines[0]


def ours(clip="ViT-B-16", kind="leave-domains-out", **other):
    """Make a table of PromptFL with 97, 98, 99 and 90 % at seed 0, and one point more at seed 1."""
    values = {"art_painting": 97.0, "cartoon": 98.0, "photo": 99.0, "sketch": 90.0}
    runs = []
    for domain, value in values.items():
        for seed in (0, 1):
            runs.append(make_record(value + seed, held_out=domain, seed=seed, clip=clip, data={"kind": kind}, **other))
    (table,) = tables(runs, ("last",))
    return table


def test_our_numbers_and_differences_follow_the_method():
    text = paper_text(table_of("trip", "I", "pacs"), ours())
    rows = rows_of(text)
    start = [row[0] for row in rows].index("PromptFL")
    printed, own, difference = rows[start : start + 3]
    assert printed[2:] == ["96.41", "98.43", "99.62", "91.21", "96.41"]
    assert own[0] == "  ours: promptfl, last"
    assert own[2:] == ["97.50 ± 0.71", "98.50 ± 0.71", "99.50 ± 0.71", "90.50 ± 0.71", "96.50 ± 0.71"]
    assert difference[2:] == ["+1.09", "+0.07", "-0.12", "-0.71", "+0.09"]
    assert "split (ours stratified" in text.lines[2]
    assert "backbone" not in text.lines[2]


def test_differences_in_settings_are_listed():
    table = ours(clip="RN50", training={"seed": 0})
    lines = paper_text(table_of("trip", "I", "pacs"), table).lines
    assert "backbone (ours CLIP RN50, printed CLIP ViT-B/16)" in lines[2]
    assert "absolute accuracies cannot be compared" in lines[2]
    lines = paper_text(table_of("diprompt", "1", "pacs"), table).lines
    assert "clients (ours 3, printed 20)" in lines[2]
    assert "backbone" not in lines[2]


def test_only_tables_of_the_same_protocol_and_domains_match():
    assert [table.paper for table in matching_tables(ours(), [])] == ["trip", "plan", "diprompt"]
    assert [table.paper for table in matching_tables(ours(kind="all domains seen"), [])] == ["fed_dpt", "adapt"]
    (other,) = tables([make_record(data={"name": "DomainFolders pacs", "domains": ["sketch", "ink"]})], ("last",))
    assert matching_tables(other, []) == []
    (folders,) = tables([make_record(data={"name": "DomainFolders pacs"})], ("last",))
    assert len(matching_tables(folders, ["trip"])) == 1
    (bare,) = tables([make_record()], ("last",))
    cells = rows_of(paper_text(table_of("trip", "I", "pacs"), bare))
    assert ["  ours - printed", "", "-", "-", "-", "-41.21", "-"] in cells


PROX = {"class": "FedProx", "weight": 0.01}
POOLED = {"data": {"partition": CENTRALISED}}


@pytest.mark.parametrize(
    ("method", "other", "printed"),
    [
        ("TRIP", {"options": {"num_experts": 2, "prompt_length": 1}}, "TRIP-Lite"),
        ("TRIP", {"options": {"num_experts": 4, "prompt_length": 32}}, "TRIP"),
        ("PromptFL", {"options": {"kl_weight": 0.8}}, None),
        ("FedDPT", {}, "Fed-DPT"),
        ("FineTuning", {}, "FedAvg"),
        ("SingleDomain", {}, "Single-Domain Tuning"),
        ("ZeroShotCLIP", {"options": {"templates": 1}}, "Zero-Shot CLIP"),
        ("ZeroShotCLIP", {"options": {"templates": 60}}, None),
        # Add-ons, aggregators and pooled images make it a different method.
        ("FineTuning", {"training": {"seed": 0, "add_ons": [PROX]}}, "FedProx"),
        ("FineTuning", {"training": {"seed": 0, "aggregation": {"class": "FedGMA"}, "add_ons": [PROX]}}, None),
        ("ELCFS", {"training": {"seed": 0, "add_ons": [{"class": "FedDGGA"}]}}, "ELCFS+GA"),
        ("TRIP", {"training": {"seed": 0, "add_ons": [PROX]}}, None),
        ("DoPrompt", POOLED, "Doprompt"),
        ("DoPrompt", {}, None),
        ("PromptFL", POOLED, None),
    ],
)
def test_methods_are_found_under_the_papers_names(method, other, printed):
    (table,) = tables([make_record(method=method, baseline=None, **{"options": {}, **other})], ("last",))
    assert {name for name in printed_methods() if matching_rows(table, name)} == ({printed} if printed else set())
