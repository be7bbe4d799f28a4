"""A report on Weights & Biases, as the service would get it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from fedvlp.commands.cli import main
from fedvlp.results import find_records
from fedvlp.tools.report.command import wandb_report
from tests.helpers.report_runs import write_run

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style")  # raised by what wandb-workspaces imports
PROJECT = {"id": "p", "internalId": "p", "name": "fedvlp", "entityName": "team"}


@pytest.fixture
def study(tmp_path):
    """A sweep of two methods with two seeds each."""
    for seed in range(2):
        write_run(tmp_path / "first", [50.0, 52.0 + seed], seed=seed)
        write_run(tmp_path / "first", [45.0, 46.0 + seed], seed=seed, method="PromptFL")
    (tmp_path / "first" / "sweep.json").write_text('{"runs": {}}', encoding="utf-8")
    return tmp_path / "first"


@pytest.fixture
def service(monkeypatch):
    """Stands in for the service; returns what it was sent to keep."""
    pytest.importorskip("wandb_workspaces")
    sent = []

    def answer(api, query, variables=None):
        if "upsertView" not in str(query):
            return {"project": PROJECT}
        sent.append(variables)
        view = {"id": "V1", "spec": variables["spec"], "project": PROJECT, "displayName": variables["displayName"]}
        return {"upsertView": {"view": {"name": variables["name"], "type": "runs", "description": "", **view}}}

    interface = "wandb_workspaces.reports.v2.interface"
    api = SimpleNamespace(projects=lambda entity: [SimpleNamespace(name="fedvlp")], client=None)
    api._service_api = SimpleNamespace(app_url="https://service.example/", execute_graphql=None)
    monkeypatch.setattr(f"{interface}._get_api", lambda: api)
    monkeypatch.setattr(f"{interface}.execute_graphql", answer)
    return sent


def kinds(grid):
    return [panel["viewType"] for panel in grid["metadata"]["panelBankSectionConfig"]["panels"]]


def test_is_laid_out_as_the_tables_of_compare(study, service, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(study), "-o", str(page), "--wandb", "team/fedvlp", "--title", "First"]) == 0
    assert page.is_file()
    assert "https://service.example/team/fedvlp/reports/First--V1" in capsys.readouterr().out
    (view,) = service
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "fedvlp", "First")
    _, heading, finding, grid, _ = json.loads(view["spec"])["blocks"]
    assert heading["children"][0]["text"].startswith("Made, ")
    assert finding["children"][0]["text"].startswith("TRIP has the highest result, 52.5")
    (runs,) = grid["metadata"]["runSets"]
    asked = [(one["key"]["name"], one["op"], one["value"]) for one in runs["filters"]["filters"]]
    assert asked == [("group", "=", "first"), ("ended", "=", True)]
    curves = ["Run History Line Plot", "Run History Line Plot"]
    assert kinds(grid) == ["Bar Chart", *curves, "Scatter Plot", "Run Comparer"]
    bars = grid["metadata"]["panelBankSectionConfig"]["panels"][0]["config"]
    assert bars["metrics"] == ["summary_metrics.last/held_out", "summary_metrics.last/held_out/photo"]


def test_runs_of_fit_alone_without_held_out_images(tmp_path, service):
    """They are found by method and data, and validation is shown."""
    folder = write_run(tmp_path, [50.0])
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for row in summary["accuracy"].values():
        for name in [name for name in row if name.startswith("held_out")]:
            del row[name]
    (folder / "summary.json").write_text(json.dumps(summary | {"held_out": []}), encoding="utf-8")
    grid = wandb_report(find_records([tmp_path])[0], "team/fedvlp", "Seen").blocks[-1]
    assert grid.runsets[0].name == "TRIP, Made"
    assert {metric.name.split("/")[1] for metric in grid.panels[0].metrics} == {"validation"}


def test_a_service_that_fails_costs_no_page(study, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb_workspaces")

    def fail():
        raise RuntimeError("not logged in")

    monkeypatch.setattr("wandb_workspaces.reports.v2.interface._get_api", fail)
    page = tmp_path / "report.html"
    assert main(["report", str(study), "-o", str(page), "--wandb", "team/fedvlp"]) == 1
    assert "The report on Weights & Biases could not be made: not logged in" in capsys.readouterr().err
    assert page.is_file()


def test_a_project_without_its_owner_is_refused(study, tmp_path, capsys):
    assert main(["report", str(study), "-o", str(tmp_path / "report.html"), "--wandb", "fedvlp"]) == 1
    assert "--wandb names a project as ENTITY/PROJECT" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
