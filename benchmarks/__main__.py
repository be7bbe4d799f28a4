"""Run all benchmarks and print their tables: `python -m benchmarks`. See README.md in this folder."""

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
ON_DEVICES = ("local_step", "precision", "round")
"""Benchmarks of a device; the others measure the loop, the files and main memory."""


def main() -> None:
    """Run the selected benchmarks."""
    arguments = parse(sys.argv[1:])
    torch.set_num_threads(arguments.threads)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    if arguments.output is not None and arguments.output.suffix:
        arguments.output.unlink(missing_ok=True)
    with ExitStack() as files:
        for suite in arguments.only:
            report(suite, arguments, command, outputs(arguments.output, suite, files))


def report(suite: str, arguments: argparse.Namespace, command: str, targets: list[TextIO]) -> None:
    """Run one benchmark and write its tables as they are finished."""
    module = importlib.import_module(f"benchmarks.{suite}")
    started = time.perf_counter()
    say(f"# {suite}\n\n`{command}`\n\n{describe_machine(arguments.device)}\n\n{module.NOTES}\n", targets)
    output: Path | None = arguments.output
    figures = output.parent if output is not None and output.suffix else output
    options = {"device": arguments.device} if suite in ON_DEVICES else {"figures": figures}
    for table in module.tables(arguments.quick, **options):
        say(table.markdown(), targets)
    say(f"Took {time.perf_counter() - started:.0f} s.", targets)


def parse(given: list[str]) -> argparse.Namespace:
    """Parse the options, and check the names of benchmarks and the device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUITES, metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="small sizes and the tiny CLIP, to see that all runs")
    on_devices = ", ".join(ON_DEVICES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=f"cuda: only {on_devices}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each side")
    parser.add_argument("--output", type=Path, help="also write to this Markdown file, or to NAME.md in this folder")
    arguments = parser.parse_args(given)
    possible = SUITES if arguments.device == "cpu" else ON_DEVICES
    arguments.only = arguments.only or possible
    if not set(arguments.only) <= set(possible):
        parser.error(f"--device {arguments.device} is only for {on_devices}; the others measure the processor.")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here. Leave --device out to measure the processor.")
    return arguments


def outputs(path: Path | None, suite: str, files: ExitStack) -> list[TextIO]:
    """Open the targets of a benchmark's tables: the screen and, if requested, a file that `files` closes."""
    if path is None:
        return [sys.stdout]
    target = path if path.suffix else path / f"{suite}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not path.suffix:
        target.unlink(missing_ok=True)
    return [sys.stdout, files.enter_context(target.open("a", encoding="utf-8"))]


def say(text: str, targets: list[TextIO]) -> None:
    """Write a line of text immediately."""
    for target in targets:
        target.write(f"{text}\n")
        target.flush()


if __name__ == "__main__":
    main()
