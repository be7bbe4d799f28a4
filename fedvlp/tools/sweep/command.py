"""The command ``fedvlp sweep``: one run per method, held-out domain and seed, several at a time."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse.typing import PositiveInt

from fedvlp.results.record import SWEEP_FILE
from fedvlp.tools.compare.command import run_compare
from fedvlp.tools.sweep.jobs import Job, SlurmArray, SweepProgress, run_jobs
from fedvlp.tools.sweep.plan import Sweep, make_sweep, read_sweep
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import locked

SLURM_OPTIONS = (
    *("account", "constraint", "cpus_per_task", "exclude", "gpus_per_node"),
    *("mem", "partition", "qos", "reservation", "time"),
)
"""Options of ``sbatch``, with underscores."""

STOPPED = 130
"""Exit code of a command stopped by Ctrl-C."""


def read_request(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, Sweep]:
    """Parse a command line, including its sweep file, into its options and its plan.

    The options also contain the file's ``note``, which is printed first. The default ``output`` is a folder below
    ``runs``.
    """
    own, for_fit = split_arguments(arguments)
    options = parser.parse_args(own)
    content = read_sweep(options.file) if options.file else {}
    chosen = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    if chosen["models"]:
        chosen["models"] = [model for models in chosen["models"] for model in models]
    content |= {name: value for name, value in chosen.items() if value is not None}
    options.note = content.get("note", "")
    options.output = options.output or Path("runs", options.file.stem if options.file else parser.prog.split()[-1])
    return options, make_sweep(content, for_fit)


def make_runs(options: argparse.Namespace, jobs: Sequence[Job], folder: Path, devices: Sequence[str]) -> SweepProgress:
    """Run or submit the missing runs of a folder, and return the states of all runs.

    Raises:
        UserError: If another sweep uses the folder.
        KeyboardInterrupt: If the sweep was stopped.
    """
    array = _slurm_array(options, folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / SWEEP_FILE, wait=False):
            progress = SweepProgress(folder, jobs)
            if array is not None and progress.missing:
                _submit(progress, array, options.workers)
            else:
                _run_locally(progress, folder, options.workers, devices)
            return progress
    except BlockingIOError:
        raise UserError(f"Another sweep uses {folder}. Wait until it has finished, or pass another --output.") from None


def run_sweep(arguments: Sequence[str]) -> int:
    """Run the missing runs and return the exit code: 1 if any run failed, 130 if the sweep was stopped."""
    parser = axes_parser(
        "fedvlp sweep",
        "Run each method with each held-out domain and seed. The same command resumes a stopped sweep. Options with a "
        "dot, and all arguments after --, are passed to every fedvlp fit.",
        "fedvlp sweep --config data/folders --models zero_shot,promptfl,trip --held_out all --seeds 0,1,2 "
        "--output runs/first --data.root photos --trainer.rounds 10",
    )
    options, plan = read_request(parser, arguments)
    # Check everything first: a mistake found after the first run would cost hours.
    from fedvlp.tools.sweep.methods import held_out_domains, parse_methods, visible_devices  # parsing needs PyTorch

    configs = parse_methods(plan)
    jobs = plan.jobs(held_out_domains(plan, configs), options.output)
    devices = visible_devices(configs.values())
    if options.note:
        sys.stdout.write(f"{options.note.strip()}\n")
    if options.dry_run:
        print_jobs(jobs)
        return 0
    try:
        progress = make_runs(options, jobs, options.output, devices)
    except KeyboardInterrupt:
        return STOPPED
    if len(progress.missing) < len(progress.jobs) and not progress.is_submitted:
        run_compare([str(options.output), "--row=last"])
    return progress.print_failures()


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print all runs with their states and commands."""
    for job in jobs:
        sys.stdout.write(f"{'done' if job.is_done else 'missing'} {job.name}: fedvlp {shlex.join(job.arguments)}\n")


def _run_locally(progress: SweepProgress, folder: Path, workers: int | None, devices: Sequence[str]) -> None:
    parallel = workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
    missing = progress.missing
    sys.stdout.write(f"{len(progress.jobs)} runs in {folder}, {len(missing)} of them missing; {parallel} at a time\n")
    try:
        run_jobs(missing, parallel, progress.report, devices)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; the same command resumes\n")
        raise
    progress.write()


def _submit(progress: SweepProgress, array: SlurmArray, workers: int | None) -> None:
    progress.is_submitted = True
    missing = progress.missing
    sys.stdout.write(f"{len(progress.jobs)} runs in {array.folder}, {len(missing)} of them missing; ")
    # The queue does not name runs, and no run may be started twice at the same time.
    if num_queued := array.num_queued():
        sys.stdout.write(f"{num_queued} in Slurm's queue, so none is submitted\n")
    else:
        sys.stdout.write(f"submitted as the array {array.submit(missing, workers)}\n")
    sys.stdout.write(f"to cancel: scancel --me --name={array.name}; repeat this command when the queue is empty\n")
    progress.write()


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the arguments for every fit: options with a dot, except Slurm's, and everything after ``--``.

    >>> split_arguments(["--models", "trip", "--trainer.rounds", "3", "--slurm.mem=8G", "--", "--print"])
    (['--models', 'trip', '--slurm.mem=8G'], ['--trainer.rounds', '3', '--print'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    for_fit: list[str] = []
    target = own
    for word in arguments[:end]:
        if word.startswith("--"):
            is_for_fit = "." in word.partition("=")[0] and not word.startswith("--slurm.")
            target = for_fit if is_for_fit else own
        target.append(word)
    return own, [*for_fit, *arguments[end + 1 :]]


def axes_parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Make a parser with options for methods, held-out domains and seeds, and for starting their runs."""
    parser = argparse.ArgumentParser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
    add = parser.add_argument
    add("--file", type=Path, help="YAML file with config, models, held_out, seeds, arguments and note")
    add("--config", action="append", help="config shared by all runs; can be repeated")
    add("--models", type=_words, nargs="+", help="configs of methods: a,b,c")
    add("--held_out", type=_words, help="domains held out in turn: a,b,c; two together: a+b; none; or all (default)")
    add("--seeds", type=_seeds, help="seeds of training; default: 0,1,2")
    add("--output", type=Path, help="folder of the runs; default: runs/ followed by the name of the file or command")
    add("--workers", type=PositiveInt, help="runs at a time; default: one per GPU, or half of the cores")
    add("--dry_run", action="store_true", help="only print the runs")
    add("--launcher", choices=("local", "slurm"), default="local", help="where to run; default: local")
    slurm = parser.add_argument_group("with --launcher slurm, where each run is a task of a job array")
    for name in SLURM_OPTIONS:
        slurm.add_argument(f"--slurm.{name}", help="see sbatch", metavar=name.upper())
    slurm.add_argument("--slurm.setup", action="append", help="shell command before each run; can be repeated")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _seeds(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _slurm_array(options: argparse.Namespace, folder: Path) -> SlurmArray | None:
    values = {name: getattr(options, f"slurm.{name}") for name in (*SLURM_OPTIONS, "setup")}
    chosen = {name: value for name, value in values.items() if value is not None}
    if options.launcher == "slurm":
        return SlurmArray(folder, setup=tuple(chosen.pop("setup", ())), options=chosen)
    if chosen:
        raise UserError(f"--slurm.{next(iter(chosen))} belongs to a job array. Add --launcher slurm, or remove it.")
    return None
