"""The command ``fedvlp leaderboard``: a static page of a folder of entries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from fedvlp.results import find_records
from fedvlp.tools.report.command import check_page, write_page
from fedvlp.utils.errors import UserError


def run_leaderboard(arguments: Sequence[str]) -> int:
    """Writes the page, says where it is, and returns the exit code: 1 if a folder is no entry, else 0.

    Raises:
        UserError: if there is no entry, or the page can't be written.
    """
    given = _parser().parse_args(list(arguments))
    check_page(given.output)
    records, problems = find_records([given.entries])
    if not records:
        raise UserError(f"There is no entry in {given.entries}. {' '.join(problems)}")
    from fedvlp.tools.report.leaderboard import leaderboard_page

    page = leaderboard_page(records, given.entries, given.title, date.today()).encode("utf-8", "replace")
    write_page(given.output, page)
    sys.stdout.write(f"{given.output}: {len(records)} entries\n")
    sys.stderr.writelines(f"fedvlp leaderboard: left out: {problem}\n" for problem in problems)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    """Returns the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="fedvlp leaderboard",
        description="Write one self-contained HTML page that ranks the entries of a folder, by data set and protocol. "
        "Let `fedvlp verify` check them first: the page shows what their summaries say.",
    )
    parser.add_argument("entries", type=Path, metavar="FOLDER", help="Folder of entries, at any depth.")
    parser.add_argument("-o", "--output", type=Path, default=Path("leaderboard.html"), help="The file to write.")
    parser.add_argument("--title", default="fedvlp leaderboard", help="What stands at its top.")
    return parser
