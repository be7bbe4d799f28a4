import io
import re

import pandas as pd
import pytest

from fedvlp.commands.cli import main
from tests.helpers.records import make_record, write_summary
from tests.helpers.report_runs import write_run


@pytest.fixture
def runs(tmp_path):
    """Runs of two seeds of one method, with two domains held out in turn."""
    for seed in (0, 1):
        for held_out in ("photo", "sketch"):
            write_summary(tmp_path / f"{held_out}-{seed}", make_record(60.0 + seed, held_out=held_out, seed=seed))
    return tmp_path


def test_oracle_and_intervals_are_optional(tmp_path, capsys):
    for seed in (0, 1):
        write_run(tmp_path, [60.0, 58.0 + seed], seed=seed)
    assert main(["compare", str(tmp_path)]) == 0
    assert "oracle" not in capsys.readouterr().out
    assert main(["compare", str(tmp_path), "--oracle", "--intervals", "--row", "last"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"trip +oracle, not allowed .* 60\.0 ± 0\.0 +- +\+1\.5 ± 0\.7", out)
    assert "bootstrap" not in out  # there are no predictions of single images


def test_an_unknown_run_is_named_and_the_rest_printed(runs, capsys):
    (runs / "broken" / "run").mkdir(parents=True)
    (runs / "broken" / "run" / "config.yaml").touch()
    assert main(["compare", str(runs), str(runs / "nowhere"), "--row", "last"]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("60.5 ± 0.7") == 3
    assert [line.rpartition("/")[2] for line in printed.err.splitlines() if "nowhere" in line]
    assert "broken/run has not ended" in printed.err


def test_no_run_at_all_is_an_error(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 1
    assert "it contains no run" in capsys.readouterr().err
    assert main(["compare"]) == 1
    assert "Pass run folders" in capsys.readouterr().err
    assert main(["compare", "--papers", "tripp"]) == 1
    assert "--papers: expected names from trip" in capsys.readouterr().err


def test_different_protocols_are_different_tables(runs, capsys):
    write_summary(runs / "other", make_record(33.0, data={"shots": 16}))
    assert main(["compare", str(runs)]) == 0
    one_seed, _, differences, *rest = capsys.readouterr().out.splitlines()
    assert one_seed.startswith("Results of a single seed")
    assert differences == "2 tables that cannot be compared; they differ in shots (16-shot | all images)"
    assert "\n".join(rest).count("\nPACS, ") == 2
    assert main(["compare", str(runs / "photo-0"), str(runs / "photo-1")]) == 0
    assert capsys.readouterr().out.startswith("PACS, ")


def test_csv_has_a_row_per_method_of_all_tables(runs, capsys):
    for method, value in (("PLAN", 48.0), ("FedCLIP", 61.23456)):
        write_summary(runs / method, make_record(value, held_out="photo", seed=0, method=method))
    write_summary(runs / "other", make_record(33.0, data={"shots": 16}))
    assert main(["compare", str(runs), "--row", "last", "--format", "csv"]) == 0
    frame = pd.read_csv(io.StringIO(capsys.readouterr().out))
    trained = frame[frame["round"] == "last"]
    assert list(frame.columns[:3]) == ["method", "round", "seeds"]
    main(["compare", str(runs), "--row", "last"])
    printed = capsys.readouterr().out
    assert all(re.search(rf"^{re.escape(method)} +last", printed, re.MULTILINE) for method in trained["method"])
    trip = trained[(trained["shots"] == "all images") & trained["sketch"].notna()].iloc[0]
    assert (trip["seeds"], trip["photo"], trip["photo std"], trip["average of 2 of 4"]) == (2, 60.5, 0.7071, 60.5)
    assert trained.set_index("method").loc["fed_clip", "photo"] == 61.2346
    assert trained["seconds"].dtype.kind in "if"
    assert set(trained["shots"]) == {"all images", "16-shot"}
    assert main(["compare", str(runs), "--format", "csv", "--papers", "trip"]) == 1
    assert "Remove --papers" in capsys.readouterr().err


def test_papers_are_printed_with_and_without_runs(runs, capsys):
    assert main(["compare", str(runs), "--papers", "trip", "plan"]) == 0
    out = capsys.readouterr().out
    assert out.index("PACS, leave") < out.index("TRIP, Table I: PACS") < out.index("PLAN, Table II: PACS")
    assert out.count("ours - printed") == 4
    assert "Office" not in out
    assert main(["compare", "--papers", "trip"]) == 0
    without_runs = capsys.readouterr().out
    assert without_runs.startswith("TRIP, Table I: PACS")
    assert "TRIP, Table II: OfficeHome" in without_runs
    assert "ours" not in without_runs
    assert "90.37" in without_runs
    file = runs / "table.txt"
    assert main(["compare", "--papers", "trip", "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == without_runs


def test_latex_marks_the_best_two_of_each_column(runs, capsys):
    for method, value in (("TRIP", 61.5), ("PLAN", 48.0), ("FedCLIP", 60.54)):
        for seed in (0, 1):
            write_summary(runs / f"{method}-{seed}", make_record(value, held_out="photo", seed=seed, method=method))
    assert main(["compare", str(runs), "--row=last", "--format=latex"]) == 0
    comments, _, table = capsys.readouterr().out.partition("\\begin{table}")
    assert all(line.startswith("%") for line in comments.splitlines())
    assert "images: 00ff" in comments
    assert r"mean ± sample standard deviation (n - 1) over seeds 0, 1." in table
    head, *rows = [line.removesuffix(r" \\").split(" & ") for line in table.splitlines() if " & " in line]
    columns = [head.index(title) for title in ("method", "photo", "average of 2 of 4")]
    assert [[row[column] for column in columns] for row in rows] == [
        ["zero-shot CLIP", "40.0", r"\underline{40.0}"],
        [r"fed\_clip", r"\underline{60.5 ± 0.0}", "-"],
        ["plan", "48.0 ± 0.0", "-"],
        ["trip", r"\textbf{61.5 ± 0.0}", "-"],
        ["promptfl", r"\underline{60.5 ± 0.7}", r"\textbf{60.5 ± 0.7}"],
    ]
