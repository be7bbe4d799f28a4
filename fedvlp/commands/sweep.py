"""The command ``fedvlp sweep``: methods, held-out domains and seeds as runs in one folder, made several at a time."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from fedvlp.commands.cli import main
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.commands.parser import FederationParser
from fedvlp.commands.ranges_of_config import check_config, check_rounds
from fedvlp.data import FederatedDataModule
from fedvlp.data.checks import choose_held_out
from fedvlp.sweep import (
    Job,
    Run,
    Status,
    Sweep,
    SweepFile,
    SweepProgress,
    all_runs,
    lock_sweep,
    make_sweep,
    print_summary,
    read_sweep,
    run_jobs,
)
from fedvlp.utils.checked import shown
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors

MOST_WORKERS = 4096


def run_sweep(arguments: Sequence[str]) -> int:
    """Makes the runs that are missing and returns the exit code: 1 if any run failed, 130 if the sweep was stopped.

    Raises:
        UserError: for bad input, before anything runs.
    """
    own, of_fit = split_arguments(arguments)
    options = _parser().parse_args(own)
    content = _content(options)
    plan = make_sweep(content, of_fit)
    configs = parse_methods(plan)
    runs = all_runs(plan, _held_out_by_label(plan, configs))
    devices = visible_devices(configs.values())
    output = options.output or Path("runs", options.file.stem if options.file else "sweep")
    first = () if devices else ("--trainer.num_threads=1",)
    jobs = {run.name: Job(run.name, run.arguments(output, first), output / run.name) for run in runs}
    if content.get("note"):
        sys.stdout.write(f"{content['note'].strip()}\n")
    if options.dry_run:
        _print_jobs(jobs.values())
        return 0
    workers = options.workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
    with lock_sweep(output):
        return _make_missing(runs, jobs, output, workers, devices)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the sweep's own arguments, and those of every fit: dotted options, and all that stands after ``--``.

    >>> split_arguments(["--models", "trip", "--trainer.rounds", "3", "--seeds=0", "--", "--print"])
    (['--models', 'trip', '--seeds=0'], ['--trainer.rounds', '3', '--print'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    of_fit: list[str] = []
    chosen = own
    for word in arguments[:end]:
        if word.startswith("--"):
            chosen = of_fit if "." in word.partition("=")[0] else own
        chosen.append(word)
    return own, [*of_fit, *arguments[end + 1 :]]


def train(arguments: Sequence[str]) -> int:
    """Makes one run in a process of its own and returns its exit code.

    It stands here, and not in the light module of ``main``, because a process that is to make runs imports the module
    of this function first, and with it all that ``main`` would import only later, once for each run.
    """
    return main(arguments)


def parse_methods(plan: Sweep) -> dict[str, Namespace]:
    """Returns each method's configuration by its label; the runs differ from it in held-out domain and seed alone.

    Raises:
        UserError: if ``fedvlp fit`` would refuse the arguments.
    """
    start = ["--seed_everything=false"]
    command = ParsingCLI(
        run=False,
        args=[*start, "--model=ZeroShotCLIP", "--data=StyledShapes"],
        save_config_callback=None,
        parser_kwargs={"exit_on_error": False},
    )
    parser: FederationParser = command.parser
    configs = {}
    for method in plan.methods:
        given = with_config_paths(plan.choices(method))
        try:
            config = parser.parse_args([*start, *given])
            check_rounds(config, given)
            check_config(config)
            if config.trainer.fast_dev_run:
                raise UserError("A sweep keeps results, and fast_dev_run none. Try a method with fedvlp fit.")
            configs[method.label] = config
        except ArgumentError as error:
            raise UserError(f"Model {method.label!r} of the sweep: {parser.explain(str(error))}") from error
    return configs


def visible_devices(configs: Iterable[Namespace]) -> list[str]:
    """Returns the names of the GPUs for CUDA_VISIBLE_DEVICES; none if the runs shall not use them.

    Raises:
        UserError: if a run asks for several devices.
    """
    for config in configs:
        if config.trainer.devices not in ("auto", 1, "1"):
            raise UserError("A sweep gives each run one device, and several runs share the machine. Leave out devices.")
        if config.trainer.accelerator not in ("auto", "gpu", "cuda"):
            return []
    every = [str(number) for number in range(torch.cuda.device_count())]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[: len(every)] if given else every


def _held_out_by_label(plan: Sweep, configs: Mapping[str, Namespace]) -> dict[str, list[str]]:
    """Returns the domains that are held out in turn, by the label of the method; no image is opened.

    Raises:
        UserError: if the data set has no such domain, or can't be found.
    """
    known: dict[str, list[str]] = {}
    held_out = {}
    for label, config in configs.items():
        data = {} if config.data is None else config.data.as_dict()
        if data.get("class_path", FederatedDataModule.__name__).endswith(FederatedDataModule.__name__):
            raise UserError("A sweep needs a data set. Name its config, for instance --config data/folders.")
        for name in ("held_out", "batch_size", "partition"):  # they change no domain
            data.get("init_args", {}).pop(name, None)
        # Methods mostly share their data, and to look for the domains of a large folder takes a while.
        key = repr(data)
        if key not in known:
            known[key] = _domains_of(data)
        held_out[label] = _held_out_in_turn(plan.held_out, known[key])
    return held_out


def _held_out_in_turn(wanted: str | Sequence[str], domains: Sequence[str]) -> list[str]:
    """Returns the names of the domains that ``all``, ``none`` or a list of names stands for."""
    if wanted == "none":
        return []
    chosen: list[str] = []
    for name in domains if wanted == "all" else wanted:
        chosen += choose_held_out([name], domains)
    return chosen


def _domains_of(data: Mapping[str, Any]) -> list[str]:
    """Returns the names of a data set's domains."""
    parser = FederationParser()
    parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
    with unwrapped_errors():
        module: FederatedDataModule = parser.instantiate_classes(parser.parse_object({"data": data})).data
        return module.domains


def _print_jobs(jobs: Iterable[Job]) -> None:
    for job in jobs:
        state = "done" if job.is_done else "missing"
        sys.stdout.write(f"{state} {job.name}: fedvlp {shlex.join(job.arguments)}\n")


def _make_missing(
    runs: Sequence[Run], jobs: Mapping[str, Job], output: Path, workers: int, devices: Sequence[str]
) -> int:
    """Makes the runs that are missing, prints what became of all, and returns the exit code."""
    by_name = {run.name: run for run in runs}
    file = SweepFile(output, list(jobs.values()), {name: run.axes for name, run in by_name.items()})
    progress = SweepProgress(runs, file.statuses, workers, sys.stdout)

    def report(job: Job, status: Status) -> None:
        file.set(job.name, status)
        progress.changed(by_name[job.name], status)

    missing = [job for job in jobs.values() if file.statuses[job.name].state != "done"]
    sys.stdout.write(f"{len(runs)} runs in {output}, {len(missing)} of them missing; {workers} at a time\n")
    try:
        run_jobs(missing, workers, train, report, devices, progress.redraw)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; the same command goes on with what is missing\n")
        return 130
    finally:
        file.write()
    return print_summary(runs, jobs, file, output)


def _content(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the content of the sweep's file, with the options in place of what it says."""
    content = read_sweep(options.file) if options.file else {}
    given = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    return content | {name: value for name, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the sweep's own options."""
    parser = argparse.ArgumentParser(
        prog="fedvlp sweep",
        description="Make a run for each method, held-out domain and seed. Called again, it goes on with what is "
        "missing. Options with a dot, and arguments after --, go to every fedvlp fit.",
        epilog="fedvlp sweep --config data/folders --models zero_shot,promptfl,trip --held_out all --seeds 0,1,2 "
        "--output runs/first --data.root photos --trainer.rounds 10",
        allow_abbrev=False,
    )
    parser.add_argument("--file", type=Path, help="YAML file with config, models, held_out, seeds, arguments and note")
    parser.add_argument("--config", action="append", help="config that all runs share; several are allowed")
    parser.add_argument("--models", type=_words, help="configs of methods, a,b,c")
    parser.add_argument(
        "--held_out", type=_domains, help="domains held out in turn, a,b,c; all (if not given); or none"
    )
    parser.add_argument("--seeds", type=_numbers, help="seeds of training, a,b,c; 0 if not given")
    parser.add_argument("--output", type=Path, help="folder of the runs; runs/sweep or runs/<file> if not given")
    parser.add_argument("--workers", type=_count, help="runs at a time; all GPUs or half of the cores if not given")
    parser.add_argument("--dry_run", action="store_true", help="only print the runs")
    return parser


def _words(text: str) -> list[str]:
    """Returns the words of a,b,c."""
    return [word for word in text.split(",") if word]


def _domains(text: str) -> str | list[str]:
    """Returns the domains of a,b,c; all and none are what they are."""
    return text if text in ("all", "none") else _words(text)


def _numbers(text: str) -> list[int]:
    """Returns the numbers of 0,1,2."""
    if not all(word.isdecimal() for word in _words(text)):
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 0,1,2; got {shown(text)}")
    return [int(word) for word in _words(text)]


def _count(text: str) -> int:
    """Returns a number of processes."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"expected a number in [1, {MOST_WORKERS}]; got {shown(text)}")
    return int(text)
