"""Print ablation studies as Markdown, with our numbers next to the paper's.

``python -m experiments.ablations.table trip_table_5 --readme`` also writes the table into this folder's README. The
options must equal the options of ``run``, because they identify the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.ablations.run import chosen_studies, runs_of, study_parser
from experiments.ablations.study import HERE, Study, Variant, paper_numbers
from experiments.options import Choice
from experiments.runs import SeededRuns
from experiments.tables import complete, describe, markdown, seed_means, spread, tested_role, write_block

NOT_RUN = "not run yet"


def ours(runs: SeededRuns) -> str:
    """Format the mean over held-out domains, with its standard deviation over complete seeds."""
    done = complete(runs)
    if not done:
        return NOT_RUN
    fewer = "" if len(done) == len(runs) else f" ({len(done)} of {len(runs)} seeds)"
    return spread(seed_means(done, tested_role(done))) + fewer


def printed(study: Study, variant: Variant, dataset: str) -> str:
    """Format the paper's number, or all numbers that may belong to the variant."""
    numbers = paper_numbers()
    found = [numbers[study.paper, study.table, label].get(dataset, "") for label in variant.paper]
    return " or ".join(dict.fromkeys(number for number in found if number))


def datasets(study: Study) -> list[str]:
    """List the data sets of the paper's table."""
    numbers = paper_numbers()
    names: dict[str, None] = {}
    for variant in study.variants:
        for label in variant.paper:
            names |= dict.fromkeys(numbers[study.paper, study.table, label])
    return list(names)


def table(study: Study, choice: Choice) -> str:
    """Format the table of the study, with a line on how our numbers were obtained."""
    columns = datasets(study)
    trained = []
    lines = []
    for variant in study.variants:
        runs = runs_of(study, variant, choice)
        if variant.config != "zero_shot":
            trained.append(complete(runs))
        lines.append([variant.label, ours(runs), *(printed(study, variant, dataset) for dataset in columns)])
    longest = max(trained, key=len)
    made = f"Ours: {describe(longest)}." if longest else f"Ours: {NOT_RUN}."
    head = ["variant", "ours", *(f"paper, {dataset}" for dataset in columns)]
    return f"{made}\n\n{markdown(head, lines)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--readme", action="store_true", help="also write them into the README")
    for study, choice in chosen_studies(parser, arguments):
        text = table(study, choice)
        sys.stdout.write(f"{study.title}\n\n{text}\n\n")
        if choice.options.readme:
            write_block(HERE / "README.md", study.name, text)


if __name__ == "__main__":
    main()
