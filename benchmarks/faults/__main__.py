"""`python -m benchmarks.faults`: inject every fault, report the outcomes, and write benchmarks/results/faults.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.faults.bench import Bench, NotBuiltError
from benchmarks.faults.fault import Fault, Outcome, Verdict
from benchmarks.faults.page import happened, line_of, page, summary
from benchmarks.faults.rows import chosen
from benchmarks.faults.workshop import Workshop
from benchmarks.measure import describe_machine
from fedvlp.utils.files import write_text


def main(given: Sequence[str]) -> int:
    """Run the rows; return 0 if all implemented rows pass, 1 if one fails, 2 for a wrong command."""
    arguments = parse(given)
    if arguments.list:
        for fault in chosen():
            say(f"{fault.name}: {fault.injected}")
        return 0
    try:
        faults = chosen(arguments.only)
    except KeyError as error:
        say(f"There is no row {error}; --list shows all.")
        return 2
    torch.set_num_threads(1)
    # A killed process cannot release its semaphores, and Python would report them at exit.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    machine = describe_machine()
    command = " ".join(["python -m benchmarks.faults", *given])
    stays = arguments.only and arguments.output is not None and arguments.output.exists()
    before = arguments.output.read_text(encoding="utf-8") if stays else ""
    with tempfile.TemporaryDirectory(prefix="fedvlp-faults-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        shop = Workshop(Path(folder))
        rows = []
        for fault in faults:
            rows.append((fault, carried_out(fault, shop)))
            if arguments.output is not None:  # after each row, so that a stopped run keeps its findings
                write_text(arguments.output, page(rows, command, machine, before))
    say(summary([line_of(fault, outcome) for fault, outcome in rows]))
    return int(any(outcome.verdict is Verdict.FAILS for _, outcome in rows))


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows")
    parser.add_argument("--list", action="store_true", help="name the rows, and do nothing")
    parser.add_argument(
        "--output",
        type=Path,
        help="also write a page; with --only, its other rows stay",
    )
    return parser.parse_args(given)


def carried_out(fault: Fault, shop: Workshop) -> Outcome:
    """Inject one fault, and print its outcome."""
    began = time.monotonic()
    if fault.inject is None:
        outcome = Outcome(Verdict.NOT_BUILT)
    else:
        bench = Bench(shop, fault.name)
        outcome = _tried(fault, bench, began)
    text = happened(fault, outcome)
    say(f"{outcome.verdict.value:<14}{fault.name} ({time.monotonic() - began:.0f} s): {text}")
    return outcome


def _tried(fault: Fault, bench: Bench, began: float) -> Outcome:
    """Run a row and make its outcome; an error of the row itself is a failure."""
    try:
        if fault.inject is not None:
            fault.inject(bench)
    except NotBuiltError as error:
        return Outcome(Verdict.NOT_BUILT, str(error), seconds=time.monotonic() - began)
    except Exception as error:  # continue with the other rows
        bench.expect(False, f"the row itself raised {type(error).__name__}: {error}")
    return bench.outcome(time.monotonic() - began)


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
