"""Make the runs of the oracle study: each domain held out in turn, every round evaluated.

``python -m experiments.oracle.run`` uses StyledShapes with the bundled tiny CLIP, and ``--data FOLDER`` your images.
Finished runs are kept, so a stopped study resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.options import Choice, parse, shared_parser
from experiments.runs import SeededRuns, adamw, every_run, make_runs, seed_by_seed

METHODS = {
    "PromptFL": "promptfl",
    "PromptFL + KL": "promptfl_kl",
    "DiPrompT": "diprompt",
    "TRIP-Lite": "trip_lite",
    "TRIP": "trip",
    "TRIP, random pi": "trip_random",
    "PLAN": "plan",
    "Fed-DPT": "fed_dpt",
    "ADAPT": "adapt",
}
"""The methods of the five systems and their baselines, with configs."""

ROUNDS = 8
STEPS = 4
"""Local steps of a client per round, over all phases."""

RATE = 0.003
"""The learning rate of AdamW, one of the rates of the fair comparison."""

SAME = (
    "--data.batch_size=8",
    "--trainer.clients.cohort_size=null",
    "--trainer.local.epochs=1",
    "--trainer.local.schedule=null",
    "--trainer.evaluate_every=1",
)
"""Options that replace the choices of the methods' configs; every round can be selected."""


def runs_of(config: str, choice: Choice) -> SeededRuns:
    """List the runs of a method: one per seed and held-out domain."""
    phases = 2 if config == "plan" else 1
    overrides = (*SAME, f"--trainer.local.steps={STEPS // phases}", *adamw(RATE))
    return every_run(config, overrides, choice.setting, choice.held_out, choice.seeds)


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of the study's commands."""
    parser = shared_parser(description, ROUNDS)
    parser.add_argument("--methods", default=",".join(METHODS.values()), help="names of methods' configs, a,b,c")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, with the first seed of all methods first."""
    choice = parse(study_parser(__doc__), arguments)
    make_runs(seed_by_seed(runs_of(config, choice) for config in choice.options.methods.split(",")), choice.workers)


if __name__ == "__main__":
    main()
