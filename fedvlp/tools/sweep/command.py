"""The command ``fedvlp sweep``: methods, held-out domains and seeds as runs in one folder, made several at a time."""

from __future__ import annotations

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
from fedvlp.commands.plugin_arguments import import_plugins
from fedvlp.commands.ranges_of_config import check_config, check_rounds
from fedvlp.data import FederatedDataModule
from fedvlp.data.checks import choose_held_out
from fedvlp.data.protocols import HOLDING_OUT, Protocol
from fedvlp.tools.sweep import (
    Job,
    Run,
    SlurmQueue,
    Status,
    Sweep,
    SweepFile,
    SweepProgress,
    all_runs,
    lock_sweep,
    make_sweep,
    print_summary,
    read_launcher,
    run_jobs,
)
from fedvlp.tools.sweep.on_slurm import make_missing_on_slurm
from fedvlp.tools.sweep.options import split_arguments, sweep_content, sweep_parser
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors


def run_sweep(arguments: Sequence[str]) -> int:
    """Makes the runs that are missing and returns the exit code: 1 if any run failed, 130 if the sweep was stopped.

    Raises:
        UserError: for bad input, before anything runs.
    """
    own, of_fit = split_arguments(arguments)
    options = sweep_parser().parse_args(own)
    content = sweep_content(options)
    slurm = read_launcher(content["launcher"])
    if slurm is None and options.wait == "false":
        raise UserError("--wait false leaves runs to a queue, so it needs --launcher slurm.")
    plan = make_sweep(content, of_fit)
    configs = parse_methods(plan)
    runs = all_runs(plan, _held_out_by_label(plan, configs))
    devices = visible_devices(configs.values())
    output = options.output or Path("runs", options.file.stem if options.file else "sweep")
    threads = 1 if slurm is None else slurm.threads
    first = () if devices and slurm is None else (f"--trainer.runtime.num_threads={threads}",)
    jobs = {run.name: Job(run.name, run.arguments(output, first), output / run.name) for run in runs}
    if content.get("note"):
        sys.stdout.write(f"{content['note'].strip()}\n")
    if options.dry_run:
        _print_jobs(jobs.values())
        return 0
    workers = options.workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
    with lock_sweep(output):
        if slurm is not None:
            return make_missing_on_slurm(runs, jobs, SlurmQueue(output, slurm), options.workers, options.wait == "true")
        return _make_missing(runs, jobs, output, workers, devices)


def train(arguments: Sequence[str]) -> int:
    """Makes one run in a process of its own and returns its exit code.

    It stands here, and not in the light module of ``main``, because a process that is to make runs imports the module
    of this function first, and with it all that ``main`` would import only later, once for each run.
    """
    return main(arguments)


def parse_methods(plan: Sweep) -> dict[str, Namespace]:
    """Returns each method's configuration by its label; the runs differ from it in held-out domain and seed alone.

    Raises:
        UserError: if ``fedvlp fit`` would refuse the arguments, or a plug-in that they name can't be used.
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
        import_plugins(given)
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
        protocol = data.get("init_args", {}).get("protocol")
        held_out[label] = _held_out_in_turn(plan.held_out, known[key], protocol)
    return held_out


def _held_out_in_turn(wanted: str | Sequence[str], domains: Sequence[str], protocol: Protocol | None) -> list[str]:
    """Returns the names of the domains that ``all``, ``none`` or a list of names stands for.

    Of a protocol that trains on every domain ``all`` stands for none.

    Raises:
        UserError: if there is no such domain, or the protocol holds none out.
    """
    holds_out = protocol is None or protocol in HOLDING_OUT
    if wanted == "none" or (wanted == "all" and not holds_out):
        return []
    if not holds_out:
        raise UserError(f"The protocol {protocol} trains on every domain. Leave out --held_out.")
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
