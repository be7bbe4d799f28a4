"""The command ``fedvlp tune``: trials of each method, a choice on source validation, and runs for all seeds."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

from fedvlp.tools.compare.command import run_compare
from fedvlp.tools.sweep.command import STOPPED, axes_parser, make_runs, print_jobs, read_request
from fedvlp.tools.sweep.jobs import Job
from fedvlp.tools.sweep.plan import Sweep, SweepMethod
from fedvlp.tools.tune.choice import TUNE_FILE, Choice, choices_text, copy_chosen, record_choice, write_choices
from fedvlp.tools.tune.search import Trial, make_trials, select_spaces
from fedvlp.utils.digests import digest
from fedvlp.utils.ranges import PositiveInt, Seed

Setting = tuple[SweepMethod, str | None]
"""A method and a held-out domain."""


def run_tune(arguments: Sequence[str]) -> int:
    """Run the trials, choose, and run the choice; return 1 if a run failed, 130 if the command was stopped."""
    options, plan = read_request(_parser(), arguments)
    from fedvlp.tools.sweep.methods import held_out_domains, parse_methods, visible_devices  # parsing needs PyTorch

    configs = parse_methods(plan)
    spaces = {label: select_spaces(config, options.search) for label, config in configs.items()}
    trials = {label: make_trials(spaces[label], options.trials, options.search_seed) for label in configs}
    for method in plan.methods:
        # Parse one trial of each method, to find wrong options before the first run.
        parse_methods(replace(plan, methods=(add_trial(method, trials[method.label][-1]),)))
    domains = held_out_domains(plan, configs)
    devices = visible_devices(configs.values())
    folder = options.output / "trials"
    trial_jobs: dict[Setting, list[Job]] = {}
    for method in plan.methods:
        for held_out in domains[method.label]:
            setting = (method, held_out)
            trial_jobs[setting] = [
                make_job(plan, setting, trial, plan.seeds[0], folder) for trial in trials[method.label]
            ]
    if options.dry_run:
        print_jobs(list(chain.from_iterable(trial_jobs.values())))
        return 0
    try:
        # Run the first trial of all methods and domains before the second trial of any.
        trial_by_trial = [job for jobs in zip_longest(*trial_jobs.values()) for job in jobs if job is not None]
        progress = make_runs(options, trial_by_trial, folder, devices)
        if progress.missing:
            return progress.print_failures()
        choices = {
            (method, held_out): Choice.from_jobs(method.label, held_out, trials[method.label], jobs)
            for (method, held_out), jobs in trial_jobs.items()
        }
        write_choices(options.output / TUNE_FILE, list(choices.values()), options.search, options.search_seed)
        runs = chosen_runs(plan, choices, trial_jobs, options.output / "chosen")
        progress = make_runs(options, [job for job, _ in runs], options.output / "chosen", devices)
    except KeyboardInterrupt:
        return STOPPED
    if progress.missing:
        return progress.print_failures()
    shared = {method.label: digest(list(plan.choices(method)))[:12] for method in plan.methods}
    for job, choice in runs:
        record_choice(job, choice, shared[choice.label], list(map(str, spaces[choice.label])))
    run_compare([*(str(job.folder) for job, _ in runs), "--row=last"])
    sys.stdout.write(f"{choices_text(list(choices.values()))}\n")
    return 0


def add_trial(method: SweepMethod, trial: Trial) -> SweepMethod:
    """Add a trial's arguments to a method."""
    return replace(method, arguments=(*method.arguments, *trial))


def make_job(plan: Sweep, setting: Setting, trial: Trial, seed: int, folder: Path) -> Job:
    """Make the job of a trial with one seed."""
    method, held_out = setting
    one = replace(plan, methods=(add_trial(method, trial),), seeds=(seed,))
    (job,) = one.jobs({method.label: [held_out]}, folder)
    return job


def chosen_runs(
    plan: Sweep, choices: Mapping[Setting, Choice], trial_jobs: Mapping[Setting, Sequence[Job]], folder: Path
) -> list[tuple[Job, Choice]]:
    """List the runs of all seeds with their choices; runs of the first seed are copies of the chosen trials."""
    runs = []
    for seed in plan.seeds:
        for setting, choice in choices.items():
            job = make_job(plan, setting, choice.trials[choice.chosen], seed, folder)
            if seed == plan.seeds[0]:
                copy_chosen(trial_jobs[setting][choice.chosen], job)
            runs.append((job, choice))
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = axes_parser(
        "fedvlp tune",
        "Try option values for each method and held-out domain with the first seed, choose the best on source "
        "validation after the last round, and run all seeds with them. The same command resumes a stopped search.",
        "fedvlp tune --config data/folders --models promptfl,trip --held_out all --seeds 0,1,2 "
        "--search model.optimizer.lr=loguniform(1e-4,1e-2) --trials 8 --output runs/tuned --data.root photos",
    )
    add = parser.add_argument
    add(
        "--search",
        action="append",
        required=True,
        help="OPTION=loguniform(LOW,HIGH), uniform(LOW,HIGH), integer(LOW,HIGH) or A,B,C; or auto: the learning rate "
        "from a tenth to ten times the config's, and the method's own options; can be repeated; methods ignore options "
        "that they lack",
    )
    add("--trials", type=PositiveInt, help="number of trials, the first unchanged; default: all combinations of A,B,C")
    add("--search_seed", type=Seed, default=0, help="seed of the random draws")
    return parser
