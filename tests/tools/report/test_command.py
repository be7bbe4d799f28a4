"""The command ``fedvlp report``."""

import json
import os

import pytest

from fedvlp.commands.cli import main
from fedvlp.results.figures import Picture, new_axes
from tests.helpers.report_runs import write_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr("fedvlp.tools.report.page.draw_figures", lambda table: iter(()))
    write_run(tmp_path / "runs", [50.0, 51.0])
    return tmp_path / "runs"


def test_writes_the_page_into_a_new_folder_and_names_unknown_runs(runs, tmp_path, capsys):
    target = tmp_path / "new" / "deep" / "report.html"
    options = ["-o", str(target), "--title", "A & B"]
    assert main(["report", str(runs), *options]) == 0
    assert "<title>A &amp; B</title>" in target.read_text(encoding="utf-8")
    assert os.listdir(target.parent) == ["report.html"]
    assert capsys.readouterr().out.startswith(f"{target}: 1 runs, ")
    assert main(["report", str(runs), str(tmp_path / "nowhere"), *options]) == 1
    assert f"{tmp_path / 'nowhere'}: there is no such folder" in capsys.readouterr().err
    text = target.read_text(encoding="utf-8")
    assert "nowhere: there is no such folder" in text
    assert "TRIP" in text


def test_figures_are_also_written_as_vector_files_with_text(runs, tmp_path, capsys, monkeypatch):
    pictures = [Picture(new_axes(["accuracy (%)"], "round")[0], f"Accuracy ({part} of 2)", "", "") for part in (1, 2)]
    monkeypatch.setattr("fedvlp.tools.report.page.draw_figures", lambda table: iter(pictures))
    folder = tmp_path / "new" / "figures"
    arguments = ["report", str(runs), "-o", str(tmp_path / "report.html"), "--figures"]
    assert main([*arguments, str(folder)]) == 0
    names = [f"table-1-accuracy-{part}-of-2.{kind}" for part in (1, 2) for kind in ("pdf", "svg")]
    assert sorted(os.listdir(folder)) == names
    assert capsys.readouterr().out.splitlines()[1:] == [str(folder / name) for name in names]
    assert ">accuracy (%)</text>" in (folder / names[1]).read_text(encoding="utf-8")
    before = [(folder / name).read_bytes() for name in names]
    assert before[0].startswith(b"%PDF")
    assert b"/FontFile2" in before[0]  # an embedded TrueType font
    assert main([*arguments, str(folder)]) == 0
    assert [(folder / name).read_bytes() for name in names] == before
    assert main([*arguments, str(tmp_path / "report.html")]) == 1
    assert "Expected a folder for --figures" in capsys.readouterr().err


def test_failed_runs_of_a_sweep_are_named_and_others_counted(runs, tmp_path, capsys):
    states = {f"trip-{seed}": {"state": "waiting"} for seed in range(20)}
    states |= {"a": {"state": "done"}, "b": {"state": "interrupted"}}
    (runs / "sweep.json").write_text(json.dumps({"runs": states}), encoding="utf-8")
    target = tmp_path / "report.html"
    assert main(["report", str(runs), "-o", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    note = f"21 of the sweep's 22 runs in {runs} are not finished; rerun the sweep."
    assert note.replace("'", "&#39;") in text
    assert capsys.readouterr().out.endswith(f"{note}\n")
    assert "Missing runs" not in text
    assert "trip-7" not in text
    states["b"] = {"state": "failed", "error": "no images"}
    (runs / "sweep.json").write_text(json.dumps({"runs": states}), encoding="utf-8")
    assert main(["report", str(runs), "-o", str(target)]) == 1
    assert f"{runs}, failed: no images (b)" in target.read_text(encoding="utf-8")
