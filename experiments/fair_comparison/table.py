"""Print the table of the fair comparison as Markdown. The options must equal ``run``'s, to find its runs.

``python -m experiments.fair_comparison.table --readme NAME`` also writes it into this folder's README, at the mark with
this name.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.fair_comparison.methods import METHODS, ROUNDS, Compared
from experiments.fair_comparison.run import folder_of
from experiments.options import Choice, shared_parser
from experiments.tables import markdown, print_table, spread
from fedvlp.results import find_records
from fedvlp.results.record import Record
from fedvlp.tools.sweep.plan import TOGETHER
from fedvlp.tools.tune.choice import TUNE_FILE, read_choices
from fedvlp.tools.tune.choice import Choice as RateChoice

README = Path(__file__).with_name("README.md")
FLAT = 1.0
"""A curve is flat if the second half of the rounds adds at most this many points of source validation accuracy."""


def gain(run: Record) -> float:
    """Compute the points of source validation accuracy that the second half of the rounds added; 0 for one round."""
    measured = [row["validation"] for row in run.history if "validation" in row]
    return measured[-1] - measured[-2] if len(measured) > 1 else 0.0


def runs_of(method: Compared, choice: Choice) -> tuple[list[RateChoice], list[list[Record]]]:
    """Read the choices of a method's search, and its runs: one per choice for each complete seed."""
    folder = folder_of(method, choice)
    if not (folder / TUNE_FILE).is_file():
        return [], []
    choices = read_choices(folder / TUNE_FILE)
    found: dict[tuple[int, str], Record] = {}
    for record in find_records([folder / "chosen"])[0]:
        for chosen in choices:
            held_out = tuple(chosen.held_out.split(TOGETHER)) if chosen.held_out else ()
            if record.held_out == held_out and record.tuning.get("chosen") == list(chosen.trials[chosen.chosen]):
                found[record.seed, chosen.held_out or ""] = record
    names = [chosen.held_out or "" for chosen in choices]
    seeds = choice.seeds if method.trains else choice.seeds[:1]
    complete = [seed for seed in seeds if all((seed, name) in found for name in names)]
    return choices, [[found[seed, name] for name in names] for seed in complete]


def cells(method: Compared, choices: Sequence[RateChoice], runs: Sequence[Sequence[Record]]) -> list[str]:
    """Format a row: accuracies on each held-out domain, their mean, and further columns of the last round."""
    role = "held_out" if runs[0][0].held_out else "test"
    by_domain = []
    for of_choice in zip(*runs, strict=True):
        by_domain += [spread([run.last[f"{role}/{name}"] for run in of_choice]) for name in of_choice[0].held_out]
    means = []
    for kind in (role, "validation"):
        means.append(spread([statistics.mean(run.last[kind] for run in of_seed) for of_seed in runs]))
    every = [run for of_seed in runs for run in of_seed]
    gained = statistics.mean(map(gain, every))
    return [
        method.title,
        method.teacher or "none",
        rates(choices),
        *by_domain,
        *means,
        f"{gained:+.1f}{', rising' if gained > FLAT else ''}" if method.trains else "",
        f"{every[0].communication.get('upload_parameters', 0):,}",
        f"{len(runs)}",
        f"{statistics.median(run.seconds for run in every):.0f}",
    ]


def rates(choices: Sequence[RateChoice]) -> str:
    """List the chosen learning rates in the order of held-out domains; a single one if all are equal."""
    chosen = [" ".join(choice.trials[choice.chosen]).partition("=")[2] or "none" for choice in choices]
    return chosen[0] if len(set(chosen)) == 1 else ", ".join(chosen)


def table(choice: Choice) -> str:
    """Format the table, with a line on how it was made; incomplete methods are skipped."""
    lines = []
    left_out = []
    runs: list[list[Record]] = []
    for method in METHODS:
        if method.test_time != choice.options.test_time:
            continue
        choices, of_method = runs_of(method, choice)
        if of_method:
            lines.append(cells(method, choices, of_method))
            runs = max(runs, of_method, key=len)
        else:
            left_out.append(method.title)
    columns = [name for group in choice.held_out if group for name in group.split(TOGETHER)]
    head = ["method", "teacher", "learning rate", *columns, "mean", "source validation"]
    head += ["gain of the second half", "parameters sent", "seeds", "seconds a run"]
    parts = [f"Accuracy in %. {describe(runs, choice)}." if runs else "Not run yet.", markdown(head, lines, texts=3)]
    if left_out:
        parts.append(f"Not run yet: {', '.join(left_out)}.")
    return "\n\n".join(parts)


def describe(runs: Sequence[Sequence[Record]], choice: Choice) -> str:
    """Describe data, CLIP, held-out domains, rounds and seeds in one line."""
    first = runs[0][0]
    seeds = ", ".join(str(of_seed[0].seed) for of_seed in runs)
    held_out = f"held out in turn: {', '.join(map(str, choice.held_out))}; " if first.held_out else ""
    return f"{choice.setting.name}; {held_out}{first.rounds} rounds, last round; seeds {seeds}"


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of this command's options."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--test_time", action="store_true", help="show only methods that see unlabelled test images")
    return parser


def main() -> None:
    """Print the table."""
    print_table(make_parser(), table, README)


if __name__ == "__main__":
    main()
