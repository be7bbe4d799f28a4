"""The command ``fedvlp report``: a page of finished runs."""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from fedvlp.results import find_records
from fedvlp.results.record import SWEEP_FILE
from fedvlp.runs.run_folder import list_run_files
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, read_json, write_bytes


def run_report(arguments: Sequence[str]) -> int:
    """Write the page and return the exit code: 1 if it lacks a path or a failed run, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="fedvlp report",
        description="Write one self-contained HTML page with the tables, figures, configs and versions of finished "
        "runs. The page loads no other file and needs no network.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="Run folders, or folders of runs.")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="The file to write.")
    parser.add_argument("--title", default="fedvlp report", help="Heading of the page.")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="Also write each figure as PDF and SVG.")
    options = parser.parse_args(list(arguments))
    if options.figures is not None and options.figures.is_file():
        raise UserError(f"Expected a folder for --figures, but {options.figures} is a file. Choose another path.")
    check_replaceable(options.output, list_run_files(options.runs))
    records, problems = find_records(options.runs, needs=("history", "predictions", "config"))
    notes: list[str] = []
    for path in options.runs:
        failed, unfinished = unfinished_runs(path)
        problems += failed
        notes += unfinished
    if not records:
        raise UserError(f"There is no finished run to report. {' '.join(problems)}")
    from fedvlp.tools.report.page import figure_files, report_page

    page = report_page(records, problems, options.title, date.today(), notes)
    write_page(options.output, page, f"{len(records)} runs, {len(page) / 1e6:.1f} MB")
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        for name, content in figure_files(records):
            write_bytes(options.figures / name, content)
            sys.stdout.write(f"{options.figures / name}\n")
    sys.stdout.writelines(f"{note}\n" for note in notes)
    sys.stderr.writelines(f"fedvlp report: skipped: {problem}\n" for problem in problems)
    return 1 if problems else 0


def write_page(target: Path, page: str, content: str) -> None:
    """Write a page to a file, and print its path with a short description."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Folder names may contain bytes that are invalid UTF-8.
    write_bytes(target, page.encode("utf-8", "replace"))
    sys.stdout.write(f"{target}: {content}\n")


def unfinished_runs(folder: Path) -> tuple[list[str], list[str]]:
    """Describe failed runs in the folder of a sweep, one line per error, and count unfinished runs in one line."""
    failed: dict[str, list[str]] = {}
    num_waiting = 0
    if not (folder / SWEEP_FILE).is_file():
        return [], []
    runs = read_json(folder / SWEEP_FILE)["runs"]
    for name, run in runs.items():
        if run["state"] == "failed":
            failed.setdefault(str(run.get("error")), []).append(name)
        elif run["state"] != "done":
            num_waiting += 1
    problems = [f"{folder}, failed: {error} ({', '.join(names)})" for error, names in failed.items()]
    waiting = f"{num_waiting} of the sweep's {len(runs)} runs in {folder} are not finished; rerun the sweep."
    return problems, [waiting] if num_waiting else []
