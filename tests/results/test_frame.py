"""``fedvlp.load_runs``: one DataFrame of runs, rows and splits."""

import json

import pytest

import fedvlp
from fedvlp.results.frame import COLUMNS, runs_frame
from fedvlp.results.tables import LAST, tables
from fedvlp.utils.errors import UserError
from tests.helpers.records import make_record
from tests.helpers.report_runs import DOMAINS, write_run


def test_a_pivot_of_the_frame_is_the_table(tmp_path):
    for method, value in (("TRIP", 60.0), ("PLAN", 50.0)):
        for seed in (0, 1):
            for index, domain in enumerate(DOMAINS):
                write_run(tmp_path, [10.0, value + index + seed], domain, seed, method)
    runs = fedvlp.load_runs(tmp_path)
    assert list(runs) == list(COLUMNS)
    assert runs["comparison"].nunique() == 1
    last = runs[(runs["row"] == "last round") & (runs["role"] == "held_out") & (runs["domain"] != "")]
    pivot = last.pivot_table(index="method", columns="domain", values="accuracy")
    (table,) = tables(fedvlp.results.find_records([tmp_path])[0])
    for method in ("TRIP", "PLAN"):
        for domain in DOMAINS:
            assert pivot.loc[method, domain] == pytest.approx(table.cell((method, LAST), domain).mean)


def test_every_row_says_what_it_is_of():
    metrics = {"last round": {"held_out": {"macro_f1": 33.0, "worst_domain": {"name": "x", "accuracy": 9.0}}}}
    scores = {"held_out/sketch": 50.0, "held_out": 50.0}
    runs = runs_frame([make_record(seed=4, metrics=metrics, accuracy={"last round (3)": scores})])
    mean = runs[runs["domain"] == ""].iloc[0]
    assert (mean["row"], mean["role"], mean["accuracy"]) == ("last round", "held_out", 50.0)
    assert (mean["macro_f1"], mean["worst_domain"]) == (33.0, 9.0)
    assert (mean["data"], mean["held_out"], mean["seed"], mean["shots"]) == ("PACS", "sketch", 4, "all")
    assert mean["bytes"] == 2 * mean["upload_bytes"] == 65536
    assert runs["macro_f1"].isna().sum() == 1


def test_runs_that_may_not_be_compared_have_other_digests():
    one, other, more = make_record(), make_record(data={"shots": 4}), make_record(held_out=("photo", "sketch"))
    assert runs_frame([one, other, more])["comparison"].nunique() == 3
    assert runs_frame([one, make_record(seed=5, held_out="photo")])["comparison"].nunique() == 1
    assert runs_frame([one, make_record(options={"prompt_length": 4})])["settings"].nunique() == 2


def test_what_can_not_be_read_is_said(tmp_path):
    with pytest.raises(UserError, match="There is no finished run to load"):
        fedvlp.load_runs(tmp_path)
    folder = write_run(tmp_path, [50.0])
    (write_run(tmp_path, [50.0], seed=1) / "summary.json").write_text(json.dumps({"rounds": 3}))
    with pytest.warns(UserWarning, match="is no summary of a run"):
        runs = fedvlp.load_runs([tmp_path])
    assert set(runs["run"]) == {str(folder)}
