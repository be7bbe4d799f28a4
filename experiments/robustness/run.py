"""Make the runs of the robustness study: methods, attacks, aggregators and numbers of hostile clients.

``python -m experiments.robustness.run`` uses StyledShapes with the bundled tiny CLIP. Finished runs are kept. Options
select runs; arguments after ``--`` are passed to every ``fedvlp fit``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from experiments.options import Choice, parse, shared_parser
from experiments.runs import SeededRuns, StudyRun, every_run, make_runs, seed_by_seed

NUM_CLIENTS = 10

RULES = {
    "mean": (),
    "trimmed mean": ("--trainer.server.aggregation=TrimmedMean", "--trainer.server.aggregation.share=0.3"),
    "median": ("--trainer.server.aggregation=CoordinateMedian",),
    "Multi-Krum": (
        "--trainer.server.aggregation=MultiKrum",
        "--trainer.server.aggregation.byzantine=3",
        "--trainer.server.aggregation.selected=5",
    ),
}
"""Aggregators that withstand three hostile clients of ten, and the method's own mean."""

BACKDOOR = "backdoor"
LEARNED_BACKDOOR = "learned backdoor"
BACKDOORS = (BACKDOOR, LEARNED_BACKDOOR)
ATTACKS = {
    "sign flip": ("--trainer.clients.attack=SignFlip",),
    "sign flip, 10 times": ("--trainer.clients.attack=SignFlip", "--trainer.clients.attack.scale=10"),
    "scaling, 100 times": ("--trainer.clients.attack=Scaling", "--trainer.clients.attack.factor=100"),
    BACKDOOR: ("--trainer.clients.attack=BackdoorPatch", "--trainer.clients.attack.target=3"),
    LEARNED_BACKDOOR: ("--trainer.clients.attack=BadPromptFL", "--trainer.clients.attack.target=3"),
}

METHODS = ("promptfl", "trip", "plan")


@dataclass(frozen=True)
class Cell:
    """A cell of the tables.

    Attributes:
        method: Name of the method's config.
        hostile: Number of hostile clients.
        attack: A key of ``ATTACKS``.
        rule: A key of ``RULES``.
    """

    method: str
    hostile: int
    attack: str
    rule: str

    @property
    def overrides(self) -> tuple[str, ...]:
        """Arguments of ``fedvlp`` for the cell; without hostile clients, all attacks except backdoors share a run."""
        attack = ATTACKS[self.attack if self.hostile or self.attack in BACKDOORS else BACKDOOR]
        return (*RULES[self.rule], *attack, f"--trainer.clients.attack.clients={self.hostile}")

    def runs(self, choice: Choice) -> SeededRuns:
        """List the runs of the cell, one per seed."""
        clients = ("--data.partition=Dispersed", f"--data.partition.num_clients={NUM_CLIENTS}")
        overrides = (*clients, *self.overrides)
        return every_run(self.method, overrides, choice.setting, choice.held_out, choice.seeds)


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of the study's commands."""
    parser = shared_parser(description, rounds=10)
    parser.set_defaults(seeds="0")
    parser.add_argument("--methods", default=",".join(METHODS), help="names of methods' configs, a,b,c")
    parser.add_argument("--hostile", default="0,1,2,3", help="numbers of hostile clients of ten, a,b,c")
    parser.add_argument("--attacks", default=",".join(short_names()), help="short names of attacks, a,b,c")
    return parser


def short_names() -> dict[str, str]:
    """Map attacks to names without spaces."""
    return {name.replace(",", "").replace(" ", "_"): name for name in ATTACKS}


def chosen(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> tuple[Choice, list[Cell]]:
    """Parse the settings and the requested cells; each method starts with few hostile clients."""
    choice = parse(parser, arguments, held_out="sketch")
    options = choice.options
    hostile = map(int, options.hostile.split(","))
    attacks = [short_names()[name] for name in options.attacks.split(",")]
    return choice, [Cell(*place) for place in product(options.methods.split(","), hostile, attacks, RULES)]


def runs_of(cells: Sequence[Cell], choice: Choice) -> list[StudyRun]:
    """List all runs without duplicates."""
    return list(dict.fromkeys(seed_by_seed(cell.runs(choice) for cell in cells)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs."""
    choice, cells = chosen(study_parser(__doc__), arguments)
    make_runs(runs_of(cells, choice), choice.workers)


if __name__ == "__main__":
    main()
