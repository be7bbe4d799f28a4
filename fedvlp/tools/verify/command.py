"""The command ``fedvlp verify``: evaluates the entries of a leaderboard again, and writes its page."""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP
from fedvlp.results import find_records
from fedvlp.runs.run_folder import list_run_files
from fedvlp.tools.compare.tables import LAST
from fedvlp.tools.report.command import write_page
from fedvlp.tools.sweep.command import split_arguments
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable
from fedvlp.utils.ranges import NonNegativeFloat


def run_verify(arguments: Sequence[str]) -> int:
    """Evaluate each entry again, write the page of verified entries, and return 0 if all are verified, otherwise 1."""
    parser = argparse.ArgumentParser(
        "fedvlp verify",
        description="Evaluate trained models again, and refuse entries with a different summary: in model, images, "
        "split, protocol, training, communication, or any number of the last round and the baselines. With --output, "
        "rank the verified entries on one HTML page. Dotted options such as --data.root override the entries' configs.",
    )
    add = parser.add_argument
    add("entries", nargs="+", type=Path, metavar="ENTRY", help="entries, or folders of entries at any depth")
    add("--tolerance", type=NonNegativeFloat, default=0.01, help="allowed difference in points; default %(default)s")
    add("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    add("-o", "--output", type=Path, metavar="PAGE", help="HTML file with the ranking of verified entries")
    add("--title", default="fedvlp leaderboard", help="heading of the page")
    own_arguments, config_options = split_arguments(arguments)
    options = parser.parse_args(own_arguments)
    if options.output is not None:
        check_replaceable(options.output, list_run_files(options.entries))
    from fedvlp.tools.verify.entry import verify  # needs PyTorch

    verified: list[Path] = []
    refused: list[str] = []
    for path in options.entries:
        # A path without entries is verified like an entry, to report the missing files.
        for entry in sorted(summary.parent for summary in path.rglob("summary.json")) or [path]:
            try:
                sys.stdout.write(f"{entry}: " + verify(entry, config_options, options.tolerance, options.allow))
                verified.append(entry)
            except UserError as error:
                refused.append(f"{entry}: refused: {error}")
                sys.stderr.write(f"fedvlp verify: {refused[-1]}\n")
    if options.output is not None and verified:
        from fedvlp.tools.report.page import report_page  # needs matplotlib

        records, _ = find_records(verified)
        note = "fedvlp verify evaluated the models of all entries again. Accuracies are from the last round."
        page = report_page(records, refused, options.title, date.today(), [note], rounds=[LAST])
        write_page(options.output, page, f"{len(records)} entries")
    return 1 if refused else 0
