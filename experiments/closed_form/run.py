"""Run zero-shot CLIP, closed forms, a linear probe, and prompts on the same images.

``python -m experiments.closed_form.run`` uses IconDomains with fedvlp-small, and ``--data FOLDER`` a folder of domains.
Methods with a learning rate try several rates. Finished runs are kept, and stopped ones resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, make_runs


@dataclass(frozen=True)
class Compared:
    """A row of the table.

    Attributes:
        title: The row's name in the table.
        config: Name of the method's config.
        overrides: Arguments that all runs of the row have.
        rates: Learning rates; source validation chooses one. Empty for methods without gradients.
    """

    title: str
    config: str
    overrides: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()

    def runs(self, choice: Choice, held_out: str | None) -> list[StudyRun]:
        """List the runs that differ only in the learning rate."""
        rates = [[f"--model.optimizer.lr={rate:g}"] for rate in self.rates] or [[]]
        seed = choice.seeds[0]
        return [StudyRun(self.config, held_out, seed, choice.setting, (*self.overrides, *rate)) for rate in rates]


ROUNDS = 10
ONE_ROUND = ("--trainer.rounds=1",)
PROMPT = ("--model.prompt_length=4", "--model.optimizer=AdamW")
"""A short prompt and AdamW for both kinds of prompts."""

PROMPT_RATES = (0.001, 0.003, 0.01, 0.03)
PROBE_RATES = (0.01, 0.03, 0.1, 0.3)
"""Rates of SGD with momentum, around the config's 0.1."""

METHODS = (
    Compared("zero-shot CLIP", "zero_shot"),
    Compared("FedNCM", "fed_ncm", ONE_ROUND),
    Compared("Fed3R", "fed3r", ONE_ROUND),
    Compared("FedGDA", "fed_gda", ONE_ROUND),
    Compared("FedCOF", "fed_cof", ONE_ROUND),
    Compared("linear probe", "linear_probe", rates=PROBE_RATES),
    Compared("PromptFL, one prompt per class", "promptfl_class_specific", PROMPT, PROMPT_RATES),
    Compared("PromptFL, shared prompt", "promptfl", PROMPT, PROMPT_RATES),
)


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Create the parser that the study's commands share."""
    parser = shared_parser(description, ROUNDS)
    parser.set_defaults(data="icon_domains", clip="fedvlp-small", seeds="0")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing runs, one method after the other."""
    choice = parse(study_parser(__doc__), arguments)
    runs: list[StudyRun] = []
    for method in METHODS:
        for held_out in choice.held_out:
            runs += method.runs(choice, held_out)
    make_runs(runs, choice.workers)


if __name__ == "__main__":
    main()
