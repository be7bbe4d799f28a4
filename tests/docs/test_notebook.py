"""Notebooks run from top to bottom and reproduce their stored outputs."""

import base64
import doctest
import re
from copy import deepcopy

import pytest
from jupyter_client import AsyncKernelManager
from nbclient.util import run_sync

import docs._scripts.notebooks as script
from docs._scripts.notebooks import code_cells, differences, executed, notebooks, read, stable_text
from tests.helpers.documents import ROOT, Document

PATHS = {path.stem: path for path in notebooks()}
ABSOLUTE = re.compile(r"(?<![\w.~:/])(?:/\w+/|[A-Z]:\\)")
STARTUP = f"""
import sys
sys.path.append({str(ROOT)!r})
from fedvlp.tools.sweep import command
from tests.helpers import stand_in
command.run_jobs = stand_in.make_quietly
"""
"""Code that each kernel runs first: the runs of a sweep need no processes, because tests/tools/sweep starts some."""

each_notebook = pytest.mark.parametrize("name", PATHS)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Create one kernel for all notebooks, so that packages are imported only once."""
    profile = tmp_path_factory.mktemp("ipython")
    (profile / "profile_default" / "startup").mkdir(parents=True)
    (profile / "profile_default" / "startup" / "start.py").write_text(STARTUP, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(profile))
        manager = AsyncKernelManager(kernel_name="python3")
        yield manager
        run_sync(manager.shutdown_kernel)(now=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create one folder for all notebooks, like a reader who opens them one after another."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture
def stored():
    """Read a notebook with a cell `table` that prints a table."""
    return read(PATHS["compare_runs"])


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


@pytest.mark.usefixtures("home")
@each_notebook
def test_outputs_match_the_stored_outputs(name, kernel, folder, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert differences(read(PATHS[name]), executed(PATHS[name], folder, kernel)) == []


@each_notebook
def test_stored_outputs_are_readable_and_small(name):
    notebook = read(PATHS[name])
    assert PATHS[name].stat().st_size < 300_000
    assert 8 <= len(notebook.cells) <= 14
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, 1 + len(cells)))
    assert {output.output_type for output in outputs(notebook)} <= {"stream", "display_data"}
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]
    texts = [output.text for output in outputs(notebook) if "text" in output]
    assert len("".join(texts)) > 300
    assert not [text for text in texts if ABSOLUTE.search(text)]
    pictures = [output.data["image/png"] for output in outputs(notebook) if "data" in output]
    assert pictures or name == "sites"
    assert max([len(base64.b64decode(picture)) for picture in pictures], default=0) <= 40_000
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert not [link for link in links if not (PATHS[name].parent / link).exists()]


def test_the_tutorial_links_all_notebooks():
    links = Document(ROOT / "docs" / "tutorial.md").links()
    assert {f"../notebooks/{name}.ipynb" for name in PATHS} <= set(links)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("8 runs", "7 runs", "cell sweep: '7' in place of '8'"),
        ("linear_probe", "linear_map", "cell table: 'linear_map' in place of 'linear_probe'"),
        ("average of 2 of 6", "average of 2", "words in place of"),
        ("78.2", "58.2", "cell table: '58.2' in place of '78.2'"),
    ],
)
def test_changed_outputs_are_found(stored, old, new, found):
    changed = deepcopy(stored)
    for output in outputs(changed):
        if "text" in output:
            output.text = output.text.replace(old, new)
    assert any(found in line for line in differences(stored, changed))


def test_rounding_is_ignored_and_a_missing_output_is_found(stored):
    changed = deepcopy(stored)
    for output in outputs(changed):
        if "text" in output:
            output.text = output.text.replace("78.2", "77.0").replace("4389afde", "5389afde")
    assert changed != stored
    assert differences(stored, changed) == []
    code_cells(changed)[-1].outputs.clear()
    assert differences(stored, changed) == ["cell report has outputs [] in place of ['stdout']"]


def test_times_and_dates_are_not_stored():
    assert stable_text("runs/a/2026-11-23_02-06-43/prompts") == "runs/a/2026-01-31_12-00-00/prompts"
    assert stable_text("method  up  seconds\n---\na        1        12\n\nb 12") == (
        "method  up  seconds\n---\na        1         -\n\nb 12"
    )
    assert doctest.testmod(script).failed == 0


def test_the_command_checks_and_updates_notebooks(tmp_path, monkeypatch, capsys, stored):
    changed = deepcopy(stored)
    code_cells(changed)[-1].outputs.clear()
    script.nbformat.write(stored, tmp_path / "compare_runs.ipynb")
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    monkeypatch.setattr(script, "executed", lambda path, folder: changed)
    assert script.main(["--check"]) == 1
    assert "compare_runs: cell report has outputs []" in capsys.readouterr().out
    assert script.main(["compare_runs"]) == 0
    assert script.main(["--check", "compare_runs"]) == 0
