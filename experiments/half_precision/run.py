"""Compare every method with frozen towers in float32 and in bfloat16: same seeds, same batches, one table.

``python -m experiments.half_precision.run`` makes the runs that are missing and prints two tables: all methods after a
few rounds, and a few methods over many rounds. ``--readme`` writes them into this folder's README.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, every_run, make_runs
from experiments.tables import complete, describe, markdown, write_block
from fedvlp.utils.config_files import configs_folder

README = Path(__file__).with_name("README.md")
PRECISIONS = ("32-true", "bf16-mixed")
ROUNDS = 3
STEPS = ("--data.batch_size=32", "--trainer.local.steps=5", "--trainer.local.epochs=1", "--data.shots=8")
LONG_ROUNDS = 50
LONG_METHODS = ("promptfl", "trip_lite", "plan")
LONG_STEPS = ("--data.batch_size=16", "--trainer.local.steps=2", "--data.shots=8")
HELD_OUT = "photo"

Pair = dict[str, list[list[StudyRun]]]
"""Runs of one method by precision, one per seed."""


def pair(config: str, choice: Choice, steps: Sequence[str]) -> Pair:
    """List the runs of a method in both precisions."""
    runs = {}
    for precision in PRECISIONS:
        overrides = (f"--trainer.precision={precision}", *steps)
        runs[precision] = every_run(config, overrides, choice.setting, choice.held_out, choice.seeds)
    return runs


def differences(runs: Pair, role: str) -> list[float]:
    """Compute, for each seed, the points of accuracy that bfloat16 adds."""
    both = zip(*(runs[precision] for precision in PRECISIONS), strict=True)
    return [half[0].accuracy(role) - single[0].accuracy(role) for single, half in both]


def cells(config: str, runs: Pair) -> list[str]:
    """Format a row of the first table: both roles' accuracies, and the mean and largest difference of a seed."""
    row = [config]
    for role in ("held_out", "validation"):
        for precision in PRECISIONS:
            row.append(f"{statistics.mean(of_seed[0].accuracy(role) for of_seed in runs[precision]):.1f}")
        found = differences(runs, role)
        row.append(f"{statistics.mean(found):+.1f}")
        row.append(f"{max(map(abs, found)):.1f}")
    return row


def summary(done: dict[str, Pair]) -> str:
    """Summarise all rows."""
    held_out = list(chain.from_iterable(differences(runs, "held_out") for runs in done.values()))
    return (
        f"Over {len(held_out)} pairs of runs the held-out accuracy differs by {statistics.mean(held_out):+.2f} points "
        f"in the mean, with a standard deviation of {statistics.pstdev(held_out):.2f}."
    )


def short_table(choice: Choice) -> str:
    """Make the runs of all methods; format their table, with a line on how it was made."""
    setting = replace(choice.setting, more=(*choice.setting.more, *rounds(ROUNDS, ROUNDS)))
    choice = replace(choice, setting=setting)
    names = sorted(path.stem for path in (configs_folder() / "methods").glob("*.yaml"))
    every = {name: pair(name, choice, STEPS) for name in names}
    make_runs(all_runs(every), choice.workers)
    done = {name: runs for name, runs in every.items() if all(map(complete, runs.values()))}
    head = ["method"]
    for role in ("held out", "validation"):
        head += [f"{role}, float32", "bfloat16", "mean difference", "largest"]
    first = next(iter(done.values()))["32-true"]
    lines = [cells(name, runs) for name, runs in done.items()]
    return f"Accuracy in %. {describe(first)}.\n\n{summary(done)}\n\n{markdown(head, lines)}"


def long_table(choice: Choice) -> str:
    """Make the long runs; format the accuracy on source validation over their rounds in both precisions."""
    setting = replace(choice.setting, more=(*choice.setting.more, *rounds(LONG_ROUNDS, 10)))
    choice = replace(choice, setting=setting, seeds=choice.seeds[:1])
    every = {name: pair(name, choice, LONG_STEPS) for name in LONG_METHODS}
    make_runs(all_runs(every), choice.workers)
    lines = []
    for name, runs in every.items():
        for precision in PRECISIONS:
            history = runs[precision][0][0].record.history
            scores = [f"{row['validation']:.1f}" for row in history if "validation" in row]
            lines.append([name, precision, *scores])
    measured = len(lines[0]) - 2
    head = ["method", "precision", *(f"round {10 * number}" for number in range(1, measured + 1))]
    return f"Source validation in %, seed {choice.seeds[0]}, {HELD_OUT} held out.\n\n{markdown(head, lines, texts=2)}"


def rounds(count: int, evaluate_every: int) -> tuple[str, ...]:
    """Make the arguments for a number of rounds."""
    return f"--trainer.rounds={count}", f"--trainer.evaluate_every={evaluate_every}"


def all_runs(every: dict[str, Pair]) -> list[StudyRun]:
    """List the runs of several methods."""
    found: list[StudyRun] = []
    for runs in every.values():
        for of_precision in runs.values():
            found += chain.from_iterable(of_precision)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs and print the tables."""
    parser = shared_parser(__doc__)
    parser.add_argument("--readme", action="store_true", help="also write the tables into the README")
    choice = parse(parser, arguments, held_out=HELD_OUT)
    for name, table in {"methods": short_table, "long": long_table}.items():
        text = table(choice)
        sys.stdout.write(f"{text}\n")
        if choice.options.readme:
            write_block(README, name, text)


if __name__ == "__main__":
    main()
