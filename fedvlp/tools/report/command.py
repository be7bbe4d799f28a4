"""The command ``fedvlp report``: one page of the tables, figures and configs of finished runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from fedvlp.results import Record, find_records
from fedvlp.results.compare import tables
from fedvlp.results.ranking import contestants
from fedvlp.results.sweep_folder import SWEEP_FILE
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_bytes

NUM_IMAGES = 6
"""How many images are predicted and explained."""


def run_report(arguments: Sequence[str]) -> int:
    """Writes the page, says where it is, and returns the exit code: 1 if a path or run is not in it, else 0.

    Raises:
        UserError: if no run has ended, or the page can't be written.
    """
    given = _parser().parse_args(list(arguments))
    target: Path = given.output
    check_page(target)
    records, problems = find_records(given.runs)
    for path in given.runs:
        problems += sweep_problems(path)
    if not records:
        raise UserError(f"There is no finished run to report. {' '.join(problems)}")
    # Made before anything else, so that what can't be made costs no explanations.
    layout = lay_out(records, given.wandb, given.title) if given.wandb else None
    if given.explain:
        problems += explain_best(records)
    if layout:
        problems += send_report(layout)
    from fedvlp.tools.report.page import report_page

    page = report_page(records, problems, given.title, date.today(), given.oracle).encode("utf-8", "replace")
    write_page(target, page)
    sys.stdout.write(f"{target}: {len(records)} runs, {len(page) / 1e6:.1f} MB\n")
    sys.stderr.writelines(f"fedvlp report: left out: {problem}\n" for problem in problems)
    return 1 if problems else 0


def explain_best(records: Sequence[Record]) -> list[str]:
    """Makes predictions and explanations of the first run of each table's best method, in the run's folder.

    What lies there already stays.

    Returns:
        What could not be made, a line each.
    """
    problems: list[str] = []
    for table in tables(records):
        trained = [row for row in contestants(table) if row.is_trained]
        runs = [row.records[0].folder for row in trained[:1]]
        for run in runs:
            if not (run / "explanations" / "captions.json").is_file():
                problems += _explain(run)
    return problems


def lay_out(records: Sequence[Record], project: str, heading: str) -> Any:
    """Returns a report for Weights & Biases, of runs that were logged there, which is not sent yet.

    Args:
        records: the runs.
        project: whose the runs are, as ``entity/project``.
        heading: the report's title.

    Raises:
        UserError: if the project's name has no entity, or wandb-workspaces is not installed.
    """
    entity, _, name = project.partition("/")
    if not entity or not name:
        raise UserError(f"--wandb names a project as ENTITY/PROJECT, such as my-team/fedvlp, not {project!r}.")
    from fedvlp.tools.report.wandb_layout import wandb_report

    return wandb_report(records, entity, name, heading)


def send_report(layout: Any) -> list[str]:
    """Sends a report to Weights & Biases and prints where it is; returns why not, in a line, if that can't be."""
    try:
        url = layout.save().url
    except Exception as error:  # whatever the service raises must not cost the page
        return [f"The report on Weights & Biases could not be made: {error}"]
    sys.stdout.write(f"{url}\n")
    return []


def _explain(run: Path) -> list[str]:
    """Makes a run's explanations, and returns why not if that can't be."""
    # Imported here: it takes a while, and most reports do without.
    from fedvlp.tools.explain.command import explanation_lines

    sys.stderr.write(f"fedvlp report: explaining {run}\n")
    try:
        explanation_lines([f"--ckpt_path={run}", f"--num_images={NUM_IMAGES}"])
    except UserError as error:
        return [f"{run} has no explanations: {error}"]
    return []


def sweep_problems(folder: Path) -> list[str]:
    """Returns what a sweep's folder says of its runs that are not done, a line for each state and error."""
    try:
        runs = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))["runs"]
        found = [(run["state"], run.get("error", ""), name) for name, run in runs.items() if run["state"] != "done"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        return [f"{folder / SWEEP_FILE} can't be read ({reason!r})."]
    names: dict[str, list[str]] = {}
    for state, error, name in found:
        names.setdefault(f"{state}: {error}" if error else state, []).append(name)
    return [f"{folder}, {state} ({', '.join(of_state)})" for state, of_state in names.items()]


def _parser() -> argparse.ArgumentParser:
    """Returns the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="fedvlp report",
        description="Write one self-contained HTML page with the tables, figures, configs and versions of finished "
        "runs. It needs no other file and no network.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="Run folders, or folders with runs in them.")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="The file to write.")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="Show predictions and explanations of the best method's first run; made in its folder if they are not "
        "there, which needs the run's images.",
    )
    parser.add_argument(
        "--wandb",
        metavar="ENTITY/PROJECT",
        help="Lay out a report on Weights & Biases as well, of runs that were logged there. Needs the extra wandb.",
    )
    parser.add_argument(
        "--oracle",
        action="store_true",
        help="Add the round that is best on the images compared, which is not allowed, and its gap to the last.",
    )
    parser.add_argument("--title", default="fedvlp report", help="What stands at its top.")
    return parser


def check_page(target: Path) -> None:
    """Refuses a folder in place of a page's file, before anything is made.

    Raises:
        UserError: if it is one.
    """
    if target.is_dir():
        raise UserError(f"--output {target} is a folder. Give a file's name, such as {target / 'report.html'}.")


def write_page(target: Path, page: bytes) -> None:
    """Writes the page in one step, in a folder that is made if it is missing.

    Raises:
        UserError: if the folder or the file can't be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, page)
    except OSError as error:
        raise UserError(f"{target} can't be written ({error}). Pass another --output.") from error
