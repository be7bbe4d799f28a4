"""The command ``fedvlp sweep``: methods, held-out domains and seeds as runs in one folder, stopped and gone on with."""

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
from fedvlp.commands.lightning_cli import FederationCLI, unwrapped_errors
from fedvlp.commands.parser import FederationParser, condense, nearest
from fedvlp.data import FederatedDataModule
from fedvlp.data.checks import choose_held_out
from fedvlp.sweep import (
    Job,
    Run,
    Status,
    Sweep,
    SweepFile,
    all_runs,
    lock_sweep,
    make_sweep,
    read_sweep,
    run_jobs,
)
from fedvlp.sweep.job import headline
from fedvlp.sweep.progress import Progress, clock, describe
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError


class OnlyParses(FederationCLI):
    """The command line without what it builds."""

    def instantiate_classes(self) -> None:
        """Builds nothing."""


def sweep(arguments: Sequence[str]) -> int:
    """Makes the runs that are missing and returns the exit code: 1 if any run failed, 130 if the sweep was stopped.

    Raises:
        UserError: for bad input, before anything runs.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser().parse_args(arguments[:end])
    content = asked_for(options)
    plan = make_sweep(content, arguments[end + 1 :])
    configs = parsed(plan)
    runs = all_runs(plan, held_out_of(plan, configs))
    devices = visible_devices(configs.values())
    output = options.output or Path("runs", options.file.stem if options.file else "sweep")
    first = () if devices else ("--trainer.num_threads=1",)
    jobs = {run.name: Job(run.name, run.arguments(output, first), output / run.name) for run in runs}
    if content.get("note"):
        sys.stdout.write(f"{content['note'].strip()}\n")
    if options.dry_run:
        for job in jobs.values():
            sys.stdout.write(f"{'done' if job.is_done else 'missing'} {job.name}: fedvlp {shlex.join(job.arguments)}\n")
        return 0
    workers = options.workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
    with lock_sweep(output):
        return make(runs, jobs, output, workers, devices)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the sweep's own options."""
    found = argparse.ArgumentParser(
        prog="fedvlp sweep",
        description="Make a run for each method, held-out domain and seed. Called again, it goes on with what is "
        "missing. Arguments after -- go to every fedvlp fit.",
        epilog="fedvlp sweep --config data/folders --models zero_shot,promptfl,trip --held_out all --seeds 0,1,2 "
        "--output runs/first -- --data.root=photos --trainer.rounds=10",
        allow_abbrev=False,
    )
    found.add_argument("--file", type=Path, help="YAML file with config, models, held_out, seeds, arguments and note")
    found.add_argument("--config", action="append", help="config that all runs share; several are allowed")
    found.add_argument("--models", type=_words, help="configs of methods, a,b,c")
    found.add_argument("--held_out", type=_domains, help="domains held out in turn, a,b,c; all (if not given); or none")
    found.add_argument("--seeds", type=_numbers, help="seeds of training, a,b,c; 0 if not given")
    found.add_argument("--output", type=Path, help="folder of the runs; runs/sweep or runs/<file> if not given")
    found.add_argument("--workers", type=_count, help="runs at a time; all GPUs or half of the cores if not given")
    found.add_argument("--dry_run", action="store_true", help="only print the runs")
    return found


def asked_for(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the content of the sweep's file, with the options in place of what it says."""
    content = read_sweep(options.file) if options.file else {}
    given = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    return content | {name: value for name, value in given.items() if value is not None}


def parsed(plan: Sweep) -> dict[str, Namespace]:
    """Returns each method's configuration by its label; the runs differ from it in held-out domain and seed alone.

    Raises:
        UserError: if ``fedvlp fit`` would refuse the arguments.
    """
    start = ["--seed_everything=false"]
    command = OnlyParses(
        run=False,
        args=[*start, "--model=ZeroShotCLIP", "--data=StyledShapes"],
        save_config_callback=None,
        parser_kwargs={"exit_on_error": False},
    )
    found = {}
    for row in plan.rows:
        given = with_config_paths(plan.choices(row))
        try:
            found[row.label] = command.parser.parse_args([*start, *given])
        except ArgumentError as error:
            said = str(error)
            raise UserError(f"Model {row.label!r} of the sweep: {condense(said)}{nearest(said)}") from error
    return found


def held_out_of(plan: Sweep, configs: Mapping[str, Namespace]) -> dict[str, list[str]]:
    """Returns the domains that are held out in turn, by the label of the method; no image is opened.

    Raises:
        UserError: if the data set has no such domain, or can't be found.
    """
    known: dict[str, list[str]] = {}
    chosen = {}
    for label, config in configs.items():
        data = {} if config.data is None else config.data.as_dict()
        if data.get("class_path", FederatedDataModule.__name__).endswith(FederatedDataModule.__name__):
            raise UserError("A sweep needs a data set. Name its config, for instance --config data/folders.")
        for name in ("held_out", "batch_size", "partition"):  # they change no domain
            data.get("init_args", {}).pop(name, None)
        if repr(data) not in known:
            known[repr(data)] = domains_of(data)
        domains = known[repr(data)]
        names = domains if plan.held_out == "all" else [] if plan.held_out == "none" else list(plan.held_out)
        chosen[label] = [domain for name in names for domain in choose_held_out([name], domains)]
    return chosen


def domains_of(data: Mapping[str, Any]) -> list[str]:
    """Returns the names of a data set's domains."""
    maker = FederationParser()
    maker.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
    with unwrapped_errors():
        module: FederatedDataModule = maker.instantiate_classes(maker.parse_object({"data": data})).data
        return module.domains


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


def make(runs: Sequence[Run], jobs: Mapping[str, Job], output: Path, workers: int, devices: Sequence[str]) -> int:
    """Makes the runs that are missing, says what became of all, and returns the exit code."""
    by_name = {run.name: run for run in runs}
    file = SweepFile(output, list(jobs.values()), {name: run.axes for name, run in by_name.items()})
    progress = Progress(runs, file.statuses, workers, sys.stdout)

    def report(job: Job, status: Status) -> None:
        file.set(job.name, status)
        progress.changed(by_name[job.name], status)

    missing = [job for job in jobs.values() if file.statuses[job.name].state != "done"]
    sys.stdout.write(f"{len(runs)} runs in {output}, {len(missing)} of them missing; {workers} at a time\n")
    try:
        run_jobs(missing, workers, main, report, devices, progress.redraw)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; the same command goes on with what is missing\n")
        return 130
    finally:
        file.write()
    return conclude(runs, jobs, file, output)


def conclude(runs: Sequence[Run], jobs: Mapping[str, Job], file: SweepFile, output: Path) -> int:
    """Prints times, what the cached features saved, the command of the table, and what failed."""
    done = [jobs[run.name] for run in runs if file.statuses[run.name].state == "done"]
    failed = [run for run in runs if file.statuses[run.name].state == "failed"]
    features = [job.summary.get("features", {}) for job in done]
    computed, saved = (sum(of_run.get(f"{name}_seconds", 0.0) for of_run in features) for name in ("computed", "saved"))
    share = f"{100 * saved / (computed + saved):.0f} %" if computed + saved else "nothing"
    sys.stdout.write(
        f"{len(done)} of {len(runs)} runs done in {clock(file.seconds)}, all calls together\n"
        f"image features: {computed:.1f} s to compute, {saved:.1f} s saved by the cache ({share})\n"
        f"table: fedvlp compare {shlex.quote(str(output))}\n"
    )
    for run in failed:
        error = headline(file.statuses[run.name].error)
        sys.stderr.write(f"failed: {describe(run)}: {error}\n  {jobs[run.name].log}\n")
    return 1 if failed else 0


def _words(text: str) -> list[str]:
    """Returns the words of a,b,c."""
    return [word for word in text.split(",") if word]


def _domains(text: str) -> str | list[str]:
    """Returns the domains of a,b,c; all and none are what they are."""
    return text if text in ("all", "none") else _words(text)


def _numbers(text: str) -> list[int]:
    """Returns the numbers of 0,1,2."""
    if not all(word.isdecimal() for word in _words(text)):
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 0,1,2; got {text!r}")
    return [int(word) for word in _words(text)]


def _count(text: str) -> int:
    """Returns a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got {text!r}")
    return int(text)
