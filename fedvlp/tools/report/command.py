"""The commands ``fedvlp report`` and ``fedvlp leaderboard``: pages of finished runs, and of entries."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from fedvlp.results import Record, find_records
from fedvlp.results.record import SWEEP_FILE
from fedvlp.results.tables import UNTRAINED, ranking, tables
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_bytes

NUM_IMAGES = 6
"""How many images are predicted and explained."""


def run_report(arguments: Sequence[str]) -> int:
    """Writes the page, prints its path, and returns the exit code: 1 if a path or run is not in it, else 0.

    Raises:
        UserError: if no run has ended, or the page can't be written.
    """
    options = _parser().parse_args(list(arguments))
    target: Path = options.output
    check_page(target)
    records, problems = find_records(options.runs)
    for path in options.runs:
        problems += sweep_problems(path)
    if not records:
        raise UserError(f"There is no finished run to report. {' '.join(problems)}")
    # Made before anything else, so that what can't be made costs no explanations.
    layout = lay_out(records, options.wandb, options.title) if options.wandb else None
    if options.explain:
        problems += explain_best(records)
    if layout:
        problems += send_report(layout)
    from fedvlp.tools.report.page import report_page

    page = report_page(records, problems, options.title, date.today(), options.oracle)
    write_page(target, page)
    sys.stdout.write(f"{target}: {len(records)} runs, {len(page) / 1e6:.1f} MB\n")
    sys.stderr.writelines(f"fedvlp report: left out: {problem}\n" for problem in problems)
    return 1 if problems else 0


def explain_best(records: Sequence[Record]) -> list[str]:
    """Makes predictions and explanations of the first run of each table's best method, in the run's folder.

    A run that has explanations is left unchanged.

    Returns:
        A line for each run that could not be explained.
    """
    problems: list[str] = []
    for table in tables(records):
        trained = [method for method, name in ranking(table).index if name != UNTRAINED]
        for method in trained[:1]:
            run = table.runs[method][0].folder
            if not (run / "explanations" / "captions.json").is_file():
                problems += _explain(run)
    return problems


def _explain(run: Path) -> list[str]:
    # Imported here: it takes a while, and most reports do without.
    from fedvlp.tools.explain.command import explanation_lines

    sys.stderr.write(f"fedvlp report: explaining {run}\n")
    try:
        explanation_lines([f"--ckpt_path={run}", f"--num_images={NUM_IMAGES}"])
    except UserError as error:
        return [f"{run} has no explanations: {error}"]
    return []


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
    """Sends a report to Weights & Biases and prints its address; returns a line if that failed."""
    try:
        url = layout.save().url
    except Exception as error:  # whatever the service raises must not cost the page
        return [f"The report on Weights & Biases could not be made: {error}"]
    sys.stdout.write(f"{url}\n")
    return []


def sweep_problems(folder: Path) -> list[str]:
    """Returns which runs of a sweep's folder are not done, a line for each state and error."""
    try:
        runs = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))["runs"]
        states = [(run["state"], run.get("error", ""), name) for name, run in runs.items() if run["state"] != "done"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        return [f"{folder / SWEEP_FILE} can't be read ({reason!r})."]
    names: dict[str, list[str]] = {}
    for state, error, name in states:
        names.setdefault(f"{state}: {error}" if error else state, []).append(name)
    return [f"{folder}, {state} ({', '.join(of_state)})" for state, of_state in names.items()]


def run_leaderboard(arguments: Sequence[str]) -> int:
    """Writes the page of entries, prints its path, and returns the exit code: 1 if a folder is no entry, else 0.

    Raises:
        UserError: if there is no entry, or the page can't be written.
    """
    options = _leaderboard_parser().parse_args(list(arguments))
    check_page(options.output)
    records, problems = find_records([options.entries])
    if not records:
        raise UserError(f"There is no entry in {options.entries}. {' '.join(problems)}")
    from fedvlp.tools.report.page import leaderboard_page

    write_page(options.output, leaderboard_page(records, options.entries, options.title, date.today()))
    sys.stdout.write(f"{options.output}: {len(records)} entries\n")
    sys.stderr.writelines(f"fedvlp leaderboard: left out: {problem}\n" for problem in problems)
    return 1 if problems else 0


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
    parser.add_argument("--title", default="fedvlp report", help="The page's heading.")
    return parser


def _leaderboard_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedvlp leaderboard",
        description="Write one self-contained HTML page that ranks the entries of a folder, by data set and protocol. "
        "Let `fedvlp verify` check them first: the page shows what their summaries say.",
    )
    parser.add_argument("entries", type=Path, metavar="FOLDER", help="Folder of entries, at any depth.")
    parser.add_argument("-o", "--output", type=Path, default=Path("leaderboard.html"), help="The file to write.")
    parser.add_argument("--title", default="fedvlp leaderboard", help="The page's heading.")
    return parser


def check_page(target: Path) -> None:
    """Refuses a folder in place of a page's file, before anything is made.

    Raises:
        UserError: if it is one.
    """
    if target.is_dir():
        raise UserError(f"--output {target} is a folder. Give a file's name, such as {target / 'report.html'}.")


def write_page(target: Path, page: str) -> None:
    """Writes the page in one step, in a folder that is made if it is missing.

    Raises:
        UserError: if the folder or the file can't be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, page.encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"{target} can't be written ({error}). Pass another --output.") from error
