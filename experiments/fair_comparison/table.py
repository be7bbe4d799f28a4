"""Prints the table of the fair comparison as Markdown; the options are those of ``run``, by which the runs are found.

``python -m experiments.fair_comparison.table --readme NAME`` also writes it into this folder's README, at the mark of
this name.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from experiments.fair_comparison.methods import METHODS, ROUNDS, Compared
from experiments.fair_comparison.run import all_tried, chosen_rate, runs_of, tried
from experiments.options import Choice, parse, shared_parser
from experiments.runs import SeededRuns, StudyRun
from experiments.tables import complete, describe, markdown, seed_means, spread, tested_role, write_block

README = Path(__file__).with_name("README.md")
FLAT = 1.0
"""Points of source validation accuracy that the second half of the rounds may add to a curve that is called flat."""


def gain(run: StudyRun) -> float:
    """Returns the points of source validation accuracy that the second half of the rounds added; 0 of one round."""
    measured = [row["validation"] for row in run.record.history if "validation" in row]
    return measured[-1] - measured[-2] if len(measured) > 1 else 0.0


def cells(method: Compared, runs: SeededRuns, choice: Choice) -> list[str]:
    """Returns a row: accuracies on each held-out domain, their mean, and what else is said of the last round."""
    role = tested_role(runs)
    by_domain = []
    for of_domain in zip(*runs, strict=True):
        for name in of_domain[0].held_out_domains:
            by_domain.append(spread([run.accuracy(f"held_out/{name}") for run in of_domain]))
    means = [spread(seed_means(runs, kind)) for kind in (role, "validation")]
    every = list(chain.from_iterable(runs))
    seconds = statistics.median(run.record.seconds for run in every)
    sent = every[0].record.communication.get("upload_parameters", 0)
    return [
        method.title,
        method.teacher or "none",
        rates(method, choice),
        *by_domain,
        *means,
        added(every) if method.trains else "",
        f"{sent:,}",
        f"{len(runs)}",
        f"{seconds:.0f}",
    ]


def added(runs: Sequence[StudyRun]) -> str:
    """Returns the mean gain of the rounds' second half, and whether the curve is not flat yet."""
    mean = statistics.mean(gain(run) for run in runs)
    return f"{mean:+.1f}" + (", rising" if mean > FLAT else "")


def rates(method: Compared, choice: Choice) -> str:
    """Returns the chosen learning rates, in the order of held-out domains; one where all are the same."""
    if not method.trains:
        return "none"
    chosen = [f"{chosen_rate(tried(method, choice, held_out)):g}" for held_out in choice.held_out]
    return chosen[0] if len(set(chosen)) == 1 else ", ".join(chosen)


def table(choice: Choice) -> str:
    """Returns the table under a line that says how it was made; what is not complete is left out."""
    done: list[tuple[Compared, SeededRuns]] = []
    left_out: list[str] = []
    for method in METHODS:
        runs: SeededRuns = []
        if all(run.is_done for run in all_tried(method, choice)):
            runs = complete(runs_of(method, choice))
        if runs:
            done.append((method, runs))
        else:
            left_out.append(method.title)
    columns = [name for group in choice.held_out if group for name in group.split("+")]
    head = ["method", "teacher", "learning rate", *columns, "mean", "source validation"]
    head += ["gain of the second half", "parameters sent", "seeds", "seconds a run"]
    parts = ["Not run yet.", markdown(head, [cells(method, runs, choice) for method, runs in done], texts=3)]
    if done:
        longest = max((runs for method, runs in done if method.trains), key=len, default=done[0][1])
        parts[0] = f"Accuracy in %. {describe(longest)}."
    if left_out:
        parts.append(f"Not run yet: {', '.join(left_out)}.")
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--readme", metavar="NAME", help="write it into the README too, at the mark of this name")
    choice = parse(parser, arguments)
    text = table(choice)
    sys.stdout.write(f"{text}\n")
    if choice.options.readme:
        write_block(README, choice.options.readme, text)


if __name__ == "__main__":
    main()
