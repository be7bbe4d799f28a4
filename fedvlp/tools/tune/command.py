"""The command ``fedvlp tune``: trials of each method, a choice on source validation, and runs of all seeds with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fedvlp.tools.compare.command import run_compare
from fedvlp.tools.sweep.command import STOPPED, Request, axes_parser, print_jobs
from fedvlp.tools.sweep.jobs import Job, SweepProgress
from fedvlp.tools.sweep.plan import Sweep, SweepMethod
from fedvlp.tools.tune.choice import TUNE_FILE, Choice, choices_text, keep_chosen, mark, write_choices
from fedvlp.tools.tune.search import Trial, spaces_of, trials_of
from fedvlp.utils.digests import digest
from fedvlp.utils.ranges import PositiveInt, Seed

Place = tuple[str, str | None]
"""A method's label and a held-out domain."""


def run_tune(arguments: Sequence[str]) -> int:
    """Tries, chooses and makes the runs of the choice; returns 1 if a run failed, 130 if it was stopped."""
    request = Request.read(_parser(), arguments)
    options = request.options
    from fedvlp.tools.sweep.methods import domains_in_turn, parse_methods, visible_devices  # parsing needs PyTorch

    plan = request.plan
    configs = parse_methods(plan)
    spaces = {label: spaces_of(config, options.search) for label, config in configs.items()}
    trials: dict[str, list[Trial]] = {}
    for method in plan.methods:
        trials[method.label] = trials_of(spaces[method.label], options.trials, options.search_seed)
        # One trial of each method is parsed, so that a wrong option is found before the first run.
        parse_methods(replace(plan, methods=(with_trial(method, trials[method.label][-1]),)))
    found: dict[str, list[str]] = {}
    domains = {label: domains_in_turn(plan, config, found) for label, config in configs.items()}
    devices = visible_devices(configs.values())
    places: list[Place] = []
    for label, in_turn in domains.items():
        places += [(label, name) for name in in_turn] or [(label, None)]
    tried = {
        place: jobs_of(plan, place, trials[place[0]], plan.seeds[0], request.output / "trials") for place in places
    }
    if options.dry_run:
        print_jobs(list(chain.from_iterable(tried.values())))
        return 0
    try:
        progress = request.make(_in_turn(tried), request.output / "trials", devices)
        if progress.is_submitted or progress.missing:
            return _unfinished(progress)
        choices = [Choice.of(*place, trials[place[0]], jobs) for place, jobs in tried.items()]
        write_choices(request.output / TUNE_FILE, choices, options.search, options.search_seed)
        runs = _runs_of(plan, choices, tried, request.output / "chosen")
        progress = request.make([job for job, _ in runs], request.output / "chosen", devices)
    except KeyboardInterrupt:
        return STOPPED
    if progress.is_submitted or progress.missing:
        return _unfinished(progress)
    for job, choice in runs:
        mark(job, choice.summary(_shared(plan, choice.label), [str(space) for space in spaces[choice.label]]))
    run_compare([*(str(job.folder) for job, _ in runs), "--row=last"])
    sys.stdout.write(f"{choices_text(choices)}\n")
    return 0


def with_trial(method: SweepMethod, trial: Trial) -> SweepMethod:
    """Returns a method with a trial's arguments."""
    return replace(method, arguments=(*method.arguments, *trial))


def jobs_of(plan: Sweep, place: Place, trials: Sequence[Trial], seed: int, folder: Path) -> list[Job]:
    """Returns the runs of some trials of a method with a held-out domain and a seed, in their order."""
    label, held_out = place
    (method,) = (method for method in plan.methods if method.label == label)
    jobs = []
    for trial in trials:
        one = replace(plan, methods=(with_trial(method, trial),), seeds=(seed,))
        jobs += one.jobs({label: [] if held_out is None else [held_out]}, folder)
    return jobs


def _in_turn(tried: Mapping[Place, Sequence[Job]]) -> list[Job]:
    """Returns all trials, the first of every method and domain before the second of any."""
    longest = max(len(jobs) for jobs in tried.values())
    return [jobs[trial] for trial in range(longest) for jobs in tried.values() if trial < len(jobs)]


def _runs_of(
    plan: Sweep, choices: Sequence[Choice], tried: Mapping[Place, Sequence[Job]], folder: Path
) -> list[tuple[Job, Choice]]:
    """Returns the runs of all seeds with their choices; those of the first seed are copies of the chosen trials."""
    runs = []
    for seed in plan.seeds:
        for choice in choices:
            place = (choice.label, choice.held_out)
            (job,) = jobs_of(plan, place, [choice.trials[choice.chosen]], seed, folder)
            if seed == plan.seeds[0]:
                keep_chosen(tried[place][choice.chosen], job)
            runs.append((job, choice))
    return runs


def _shared(plan: Sweep, label: str) -> str:
    """Returns a digest of the arguments that all runs of a method share."""
    (method,) = (method for method in plan.methods if method.label == label)
    return digest(list(plan.choices(method)))[:12]


def _unfinished(progress: SweepProgress) -> int:
    return 0 if progress.is_submitted else progress.print_failures()


def _parser() -> argparse.ArgumentParser:
    parser = axes_parser(
        "fedvlp tune",
        "Try values of options for each method and held-out domain with the first seed, choose those that are best on "
        "source validation after the last round, and make the runs of all seeds with them. Called again, it resumes.",
        "fedvlp tune --config data/folders --models promptfl,trip --held_out all --seeds 0,1,2 "
        "--search model.optimizer.lr=loguniform(1e-4,1e-2) --trials 8 --output runs/tuned --data.root photos",
    )
    add = parser.add_argument
    add(
        "--search",
        action="append",
        required=True,
        help="OPTION=loguniform(LOW,HIGH), uniform(LOW,HIGH), integer(LOW,HIGH) or A,B,C; or auto, the learning rate "
        "from a tenth to ten times the config's and each method's own options; several are allowed, and a method that "
        "lacks an option leaves it out",
    )
    add("--trials", type=PositiveInt, help="how many are tried, the config as it is first; if not given, all of A,B,C")
    add("--search_seed", type=Seed, default=0, help="seed of the draws")
    return parser
