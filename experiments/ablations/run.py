"""Make the runs of ablation studies.

``python -m experiments.ablations.run trip_table_5 trip_table_6`` uses StyledShapes with the bundled tiny CLIP, and
``--data FOLDER --clip ViT-B-16`` your own images. Finished runs are kept and shared between studies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from experiments.ablations.study import Study, Variant, load_study, study_names
from experiments.options import Choice, parse, shared_parser
from experiments.runs import StudyRun, every_run, make_runs, seed_by_seed


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of the study's commands."""
    parser = shared_parser(description)
    parser.add_argument("studies", nargs="+", choices=[*study_names(), "all"], help="names of studies")
    return parser


def chosen_studies(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> list[tuple[Study, Choice]]:
    """Select the requested studies, with their settings."""
    names = parse(parser, arguments).options.studies
    studies = [load_study(name) for name in (study_names() if "all" in names else names)]
    return [(study, parse(parser, arguments, study.held_out)) for study in studies]


def runs_of(study: Study, variant: Variant, choice: Choice) -> list[list[StudyRun]]:
    """List the runs of a variant: one per seed and held-out domain.

    Arguments after ``--`` override the study's common arguments, and the variant's arguments override both.
    """
    setting = replace(choice.setting, more=(*study.common, *choice.setting.more))
    return every_run(variant.config, variant.overrides, setting, choice.held_out, choice.seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, seed by seed for all variants of a study."""
    chosen = chosen_studies(study_parser(__doc__), arguments)
    runs: list[StudyRun] = []
    for study, choice in chosen:
        runs += seed_by_seed(runs_of(study, variant, choice) for variant in study.variants)
    make_runs(runs, chosen[0][1].workers)


if __name__ == "__main__":
    main()
