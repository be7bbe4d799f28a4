"""Measure how well prompts detect icons of unknown classes, and print the table as Markdown.

``python -m experiments.icon_domains.unknown`` trains on the first 80 classes of four styles. The other classes' icons
in the two held-out styles are unknown. Finished runs are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from experiments.fair_comparison.methods import SAME, STEPS
from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, adamw, make_runs
from experiments.tables import markdown, spread
from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.data import IconDomains
from fedvlp.tools.sweep.plan import TOGETHER

NUM_KNOWN = 80
FOLDER = "unknown_icons"
SCORES = {"maximum probability": "", "energy": "energy_", "MCM": "mcm_", "GL-MCM": "gl_mcm_"}
"""Titles of scores, and the start of their names in results."""

PROMPTFL = ("--model.entropy_weight=0",)
"""LoCoOp's options for PromptFL, so that it has scores of patches as well."""
METHODS = {
    "zero-shot CLIP": ((*PROMPTFL, "--model.init_words=a photo of a", "--model.prompt_length=4"), 0.0),
    "PromptFL": (PROMPTFL, 0.003),
    "LoCoOp": ((), 0.01),
}
"""Options of each method, and its learning rate, as chosen in the fair comparison for all classes."""


def write_unknown(choice: Choice) -> Path:
    """Write the icons of unknown classes in the held-out styles as files, and return their folder."""
    data = IconDomains()
    known = data.class_names[:NUM_KNOWN]
    folder = choice.setting.output / FOLDER
    for domain, icons in data.scan().items():
        for icon in icons:
            is_wanted = domain in str(choice.held_out[0]).split(TOGETHER) and icon.class_name not in known
            if is_wanted and icon.pixels is not None:
                file = folder / icon.name.replace(":", "_")
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(icon.pixels).save(file.with_name(f"{file.name}.png"))
    return folder


def run_of(choice: Choice, unknown: Path, options: Sequence[str], rate: float, seed: int) -> StudyRun:
    """Describe a run with a learning rate and a seed."""
    data = (f"--data.num_classes={NUM_KNOWN}", f"--data.out_of_distribution={unknown.resolve()}")
    overrides = (*options, *data, *SAME, f"--trainer.local.steps={STEPS}", *adamw(rate))
    return StudyRun("locoop", choice.held_out[0], seed, choice.setting, overrides)


def cells(title: str, rate: float, runs: Sequence[StudyRun]) -> list[str]:
    """Format a row: the accuracy of known classes, then AUROC / FPR at 95 % by each score."""
    detected = [run.record.metrics["last round"]["held_out"][OUT_OF_DISTRIBUTION][FOLDER] for run in runs]
    row = [title, f"{rate:g}" if rate else "none", spread([run.accuracy("held_out") for run in runs])]
    for start in SCORES.values():
        pair = [spread([each[f"{start}{score}"] for each in detected]) for score in ("auroc", "fpr_at_95")]
        row.append(" / ".join(pair))
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing runs, and print the table."""
    parser = shared_parser(__doc__, rounds=5)
    parser.set_defaults(data="icon_domains", clip="fedvlp-small", workers=1)
    choice = parse(parser, arguments, held_out="emoji+pixel")
    unknown = write_unknown(choice)
    lines = []
    for title, (options, rate) in METHODS.items():
        seeds = choice.seeds if rate else choice.seeds[:1]
        runs = [run_of(choice, unknown, options, rate, seed) for seed in seeds]
        make_runs(runs, choice.workers)
        lines.append(cells(title, rate, runs))
    head = ["method", "learning rate", "accuracy", *SCORES]
    sys.stdout.write(f"{markdown(head, lines, texts=2)}\n")


if __name__ == "__main__":
    main()
