"""The quickstart notebook runs from top to bottom, and is committed without what one run of it printed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "quickstart.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(notebook, cell_id):
    """What a cell wrote to its standard output."""
    (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


@pytest.mark.usefixtures("home")
def test_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = read()
    (trains,) = [cell for cell in notebook.cells if "Federation(rounds=3, " in cell.source]
    trains.source = trains.source.replace("rounds=3", "rounds=1, local_steps=2")
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    outputs = chain(*(cell.get("outputs", []) for cell in notebook.cells))
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 3
    assert "TRIP" in printed(notebook, "table")
    assert printed(notebook, "predict").count("drawn:") >= 4
    assert list(tmp_path.glob("runs/TRIP-StyledShapes-sketch/*/prompts.safetensors"))


def test_is_committed_without_outputs():
    code = [cell for cell in read().cells if cell.cell_type == "code"]
    assert code
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count]
