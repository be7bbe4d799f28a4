"""Prints ablation studies as Markdown: ours beside the paper's.

``python -m experiments.ablations.table trip_table_5 --readme`` also writes the table into this folder's README. The
options are those of ``run``, by which the runs are found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.ablations.run import chosen_studies, runs_of, study_parser
from experiments.ablations.study import HERE, Study, Variant, paper_numbers
from experiments.options import Choice
from experiments.tables import Rows, complete, describe, markdown, seed_means, spread, tested_role, write_block

NOT_RUN = "not run yet"


def ours(runs: Rows) -> str:
    """Returns the mean over held-out domains, with its standard deviation over the seeds that are complete."""
    done = complete(runs)
    if not done:
        return NOT_RUN
    fewer = "" if len(done) == len(runs) else f" ({len(done)} of {len(runs)} seeds)"
    return spread(seed_means(done, tested_role(done))) + fewer


def printed(study: Study, variant: Variant, dataset: str) -> str:
    """Returns the paper's number, or those among which the paper leaves it open."""
    numbers = paper_numbers()
    found = [numbers[study.paper, study.table, label].get(dataset, "") for label in variant.paper]
    return " or ".join(dict.fromkeys(number for number in found if number))


def datasets(study: Study) -> list[str]:
    """Returns the data sets of the paper's table."""
    keys = paper_numbers()
    labels = [label for variant in study.variants for label in variant.paper]
    return list(dict.fromkeys(name for label in labels for name in keys[study.paper, study.table, label]))


def table(study: Study, choice: Choice) -> str:
    """Returns the study's table, under a line that says how ours was made."""
    rows = [runs_of(study, variant, choice) for variant in study.variants]
    cells = [ours(row) for row in rows]
    done = max(
        (complete(row) for row, variant in zip(rows, study.variants, strict=True) if variant.config != "zero_shot"),
        key=len,
    )
    columns = datasets(study)
    made = f"Ours: {describe(done)}." if done else f"Ours: {NOT_RUN}."
    lines = [
        [variant.label, cell, *(printed(study, variant, dataset) for dataset in columns)]
        for variant, cell in zip(study.variants, cells, strict=True)
    ]
    head = ["variant", "ours", *(f"paper, {dataset}" for dataset in columns)]
    return f"{made}\n\n{markdown(head, lines)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--readme", action="store_true", help="write them into the README too")
    for study, choice in chosen_studies(parser, arguments):
        text = table(study, choice)
        sys.stdout.write(f"{study.title}\n\n{text}\n\n")
        if choice.options.readme:
            write_block(HERE / "README.md", study.name, text)


if __name__ == "__main__":
    main()
