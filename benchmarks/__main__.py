"""All benchmarks: `python -m benchmarks` prints one table after another. See README.md beside this file."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import torch

from benchmarks.measure import describe_machine

SUITES = ("local_step", "precision", "round", "routing", "overhead", "scale", "startup", "memory", "step_memory")


def main() -> None:
    """Runs the benchmarks that were asked for."""
    arguments = parse(sys.argv[1:])
    torch.set_num_threads(arguments.threads)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    if arguments.output is not None and arguments.output.suffix:
        arguments.output.unlink(missing_ok=True)
    with ExitStack() as files:
        for suite in arguments.only:
            report(suite, arguments, command, outputs(arguments.output, suite, files))


def report(suite: str, arguments: argparse.Namespace, command: str, targets: list[TextIO]) -> None:
    """Runs one benchmark and writes its tables as they come."""
    module = importlib.import_module(f"benchmarks.{suite}")
    started = time.perf_counter()
    say(f"# {suite}\n\n`{command}`\n\n{describe_machine()}\n\n{module.NOTES}\n", targets)
    output: Path | None = arguments.output
    figures = output.parent if output is not None and output.suffix else output
    for table in module.tables(arguments.quick, figures):
        say(table.markdown(), targets)
    say(f"Took {time.perf_counter() - started:.0f} s.", targets)


def parse(given: list[str]) -> argparse.Namespace:
    """Returns the options, with the names of the benchmarks checked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUITES, default=SUITES, metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="small sizes and the tiny CLIP, to see that all runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each side")
    parser.add_argument("--output", type=Path, help="also write to this Markdown file, or to NAME.md in this folder")
    return parser.parse_args(given)


def outputs(path: Path | None, suite: str, files: ExitStack) -> list[TextIO]:
    """Returns where a benchmark's tables go: the screen and, if asked for, a file that is closed with `files`."""
    if path is None:
        return [sys.stdout]
    target = path if path.suffix else path / f"{suite}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not path.suffix:
        target.unlink(missing_ok=True)
    return [sys.stdout, files.enter_context(target.open("a", encoding="utf-8"))]


def say(text: str, targets: list[TextIO]) -> None:
    """Writes text and a line's end, at once."""
    for target in targets:
        target.write(f"{text}\n")
        target.flush()


if __name__ == "__main__":
    main()
