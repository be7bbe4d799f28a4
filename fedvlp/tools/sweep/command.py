"""The command ``fedvlp sweep``: methods, held-out domains and seeds as runs in one folder, made several at a time."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from fedvlp.results.record import SWEEP_FILE
from fedvlp.tools.compare.command import run_compare
from fedvlp.tools.sweep.jobs import SlurmArray, SweepProgress, run_jobs
from fedvlp.tools.sweep.plan import make_sweep, read_sweep
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import locked

SLURM_OPTIONS = (
    *("account", "constraint", "cpus_per_task", "exclude", "gpus_per_node"),
    *("mem", "partition", "qos", "reservation", "time"),
)
"""Options of ``sbatch``, with underscores."""


def run_sweep(arguments: Sequence[str]) -> int:
    """Makes the runs that are missing and returns the exit code: 1 if any run failed, 130 if the sweep was stopped."""
    of_sweep, of_fit = split_arguments(arguments)
    options = _parser().parse_args(of_sweep)
    content = read_sweep(options.file) if options.file else {}
    chosen = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    content |= {name: value for name, value in chosen.items() if value is not None}
    plan = make_sweep(content, of_fit)
    output = options.output or Path("runs", options.file.stem if options.file else "sweep")
    array = _slurm_array(content.get("launcher", "local"), options, output)
    # Whatever can be wrong is found before the first run: later it would cost hours.
    from fedvlp.tools.sweep.methods import domains_in_turn, parse_methods, visible_devices  # parsing needs PyTorch

    configs = parse_methods(plan)
    domains: dict[str, list[str]] = {}
    jobs = plan.jobs({label: domains_in_turn(plan, config, domains) for label, config in configs.items()}, output)
    devices = visible_devices(configs.values())
    if content.get("note"):
        sys.stdout.write(f"{content['note'].strip()}\n")
    if options.dry_run:
        for job in jobs:
            sys.stdout.write(f"{'done' if job.is_done else 'missing'} {job.name}: fedvlp {shlex.join(job.arguments)}\n")
        return 0
    output.mkdir(parents=True, exist_ok=True)
    try:
        with locked(output / SWEEP_FILE, wait=False):
            progress = SweepProgress(output, jobs)
            if array is not None and progress.missing:
                return _submit(progress, array, options.workers)
            workers = options.workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
            return _make_here(progress, output, workers, devices)
    except BlockingIOError:
        raise UserError(
            f"Another sweep is working in {output}. Wait for its end, or choose another --output."
        ) from None


def _make_here(progress: SweepProgress, output: Path, workers: int, devices: Sequence[str]) -> int:
    """Makes the missing runs on this machine, prints the table of all, and returns the exit code."""
    missing = progress.missing
    sys.stdout.write(f"{len(progress.jobs)} runs in {output}, {len(missing)} of them missing; {workers} at a time\n")
    try:
        run_jobs(missing, workers, progress.report, devices)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; the same command resumes with what is missing\n")
        return 130
    progress.write()
    if len(progress.missing) < len(progress.jobs):
        run_compare([str(output), "--row=last"])
    return progress.print_failures()


def _submit(progress: SweepProgress, array: SlurmArray, workers: int | None) -> int:
    """Submits the missing runs, unless some of the sweep's are in the queue already; returns the exit code."""
    missing = progress.missing
    sys.stdout.write(f"{len(progress.jobs)} runs in {array.folder}, {len(missing)} of them missing; ")
    # A run must not be made twice at the same time, and the queue does not tell which runs its tasks are.
    if num_queued := array.num_queued():
        sys.stdout.write(f"{num_queued} in Slurm's queue, so none is submitted\n")
    else:
        sys.stdout.write(f"submitted as the array {array.submit(missing, workers)}\n")
    sys.stdout.write(f"cancel them: scancel --me --name={array.name}; call this again once none is queued\n")
    progress.write()
    return 0


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into the command's own arguments, and those of every fit.

    Options with a dot, and all after ``--``, are of fit. Options of Slurm are the sweep's, though they have a dot.

    >>> split_arguments(["--models", "trip", "--trainer.rounds", "3", "--slurm.mem=8G", "--", "--print"])
    (['--models', 'trip', '--slurm.mem=8G'], ['--trainer.rounds', '3', '--print'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    of_command: list[str] = []
    of_fit: list[str] = []
    target = of_command
    for word in arguments[:end]:
        if word.startswith("--"):
            is_of_fit = "." in word.partition("=")[0] and not word.startswith("--slurm.")
            target = of_fit if is_of_fit else of_command
        target.append(word)
    return of_command, [*of_fit, *arguments[end + 1 :]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedvlp sweep",
        description="Make a run for each method, held-out domain and seed. Called again, it resumes with what is "
        "missing. Options with a dot, and arguments after --, go to every fedvlp fit.",
        epilog="fedvlp sweep --config data/folders --models zero_shot,promptfl,trip --held_out all --seeds 0,1,2 "
        "--output runs/first --data.root photos --trainer.rounds 10",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--file", type=Path, help="YAML file with config, models, held_out, seeds, arguments, launcher and note")
    add("--config", action="append", help="config that all runs share; several are allowed")
    add("--models", type=_words, help="configs of methods, a,b,c")
    add("--held_out", type=_words, help="domains held out in turn, a,b,c; none; or all (if not given)")
    add("--seeds", type=_seeds, help="seeds of training, a,b,c; 0,1,2 if not given")
    add("--output", type=Path, help="folder of the runs; runs/sweep or runs/<file> if not given")
    add("--workers", type=PositiveInt, help="runs at a time; all GPUs or half of the cores if not given")
    add("--dry_run", action="store_true", help="only print the runs")
    add("--launcher", choices=("local", "slurm"), help="where runs are made; local if not given")
    slurm = parser.add_argument_group("with --launcher slurm, each run is a task of a job array")
    for name in SLURM_OPTIONS:
        slurm.add_argument(f"--slurm.{name}", help="as of sbatch", metavar=name.upper())
    slurm.add_argument("--slurm.setup", action="append", help="line of shell before the run; several allowed")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _seeds(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _slurm_array(in_file: Any, options: argparse.Namespace, output: Path) -> SlurmArray | None:
    """What each run asks Slurm for, by the sweep's file and by options in place of its own; None if runs are local."""
    launcher = {"name": in_file} if isinstance(in_file, str) else in_file
    if not isinstance(launcher, dict) or launcher.get("name") not in ("local", "slurm"):
        raise UserError(f"Expected launcher to be local, slurm or a mapping with such a name; got {in_file!r}.")
    if options.launcher not in (None, launcher["name"]):
        launcher = {"name": options.launcher}
    given = {name: getattr(options, f"slurm.{name}") for name in (*SLURM_OPTIONS, "setup")}
    values = launcher | {name: value for name, value in given.items() if value is not None}
    allowed = (*SLURM_OPTIONS, "setup") if values.pop("name") == "slurm" else ()
    for name in values:
        if name not in allowed:
            raise UserError(f"The launcher has no option {name!r}; slurm has {', '.join(SLURM_OPTIONS)} and setup.")
    if not allowed:
        return None
    # sbatch would take this number as minutes.
    if isinstance(values.get("time"), int):
        raise UserError("Put the time of the launcher slurm in quotes, as '04:00:00': YAML reads 4:00:00 as a number.")
    setup = values.pop("setup", [])
    lines = [setup] if isinstance(setup, str) else setup
    return SlurmArray(output, {name: str(value) for name, value in values.items()}, tuple(map(str, lines)))
