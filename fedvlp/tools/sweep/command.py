"""The command ``fedvlp sweep``: methods, held-out domains and seeds as runs in one folder, made several at a time."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from argparse import ArgumentError
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from fedvlp.commands.compare import run_compare
from fedvlp.commands.lightning_cli import FederationParser, ParsingCLI, with_plain_numbers
from fedvlp.data import FederatedDataModule
from fedvlp.data.module import choose_held_out
from fedvlp.data.protocols import PROTOCOLS, Protocol
from fedvlp.results.record import SWEEP_FILE
from fedvlp.tools.sweep.arguments import split_arguments, sweep_parser
from fedvlp.tools.sweep.jobs import Job, run_jobs
from fedvlp.tools.sweep.plan import Sweep, all_jobs, make_sweep, read_sweep
from fedvlp.tools.sweep.progress import SweepProgress
from fedvlp.tools.sweep.slurm import OPTIONS, SlurmArray, SlurmOptions, read_launcher
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.files import locked

RESUMES = "the same command resumes"


def run_sweep(arguments: Sequence[str]) -> int:
    """Makes the runs that are missing and returns the exit code: 1 if any run failed, 130 if the sweep was stopped.

    Raises:
        UserError: for bad input, before anything runs.
    """
    own, of_fit = split_arguments(arguments)
    options = sweep_parser().parse_args(own)
    content = read_sweep(options.file) if options.file else {}
    chosen = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    content |= {name: value for name, value in chosen.items() if value is not None}
    slurm = _slurm_options(content.get("launcher", "local"), options)
    if slurm is None and options.wait == "false":
        raise UserError("--wait false leaves runs to a queue, so it needs --launcher slurm.")
    plan = make_sweep(content, of_fit)
    configs = parse_methods(plan)
    output = options.output or Path("runs", options.file.stem if options.file else "sweep")
    jobs = all_jobs(plan, _held_out_by_label(plan, configs), output)
    # Whatever can be wrong is found before the first run: later it would cost hours.
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
            if slurm is not None:
                return _make_on_slurm(jobs, SlurmArray(output, slurm), options.workers, options.wait == "true")
            workers = options.workers or len(devices) or max(1, (os.cpu_count() or 1) // 2)
            return _make_here(jobs, output, workers, devices)
    except BlockingIOError:
        raise UserError(
            f"Another sweep is working in {output}. Wait for its end, or choose another --output."
        ) from None


def _make_here(jobs: Sequence[Job], output: Path, workers: int, devices: Sequence[str]) -> int:
    """Makes the missing runs on this machine, and returns the exit code."""
    progress = SweepProgress(output, jobs, workers)
    missing = progress.missing
    sys.stdout.write(f"{len(jobs)} runs in {output}, {len(missing)} of them missing; {workers} at a time\n")
    try:
        run_jobs(missing, workers, progress.report, devices)
    except KeyboardInterrupt:
        sys.stderr.write(f"fedvlp: stopped; {RESUMES} with what is missing\n")
        return 130
    return _finish(progress, output)


def _make_on_slurm(jobs: Sequence[Job], queue: SlurmArray, workers: int | None, waits: bool) -> int:
    """Submits the runs that are missing and not in the queue, waits for all if asked to, and returns the exit code."""
    progress = SweepProgress(queue.folder, jobs, workers or len(jobs))
    missing = progress.missing
    queued = queue.states()
    # A run that is queued already must not be made twice at the same time.
    new = [job for job in missing if job.name not in queued]
    sys.stdout.write(f"{len(jobs)} runs in {queue.folder}, {len(missing)} of them missing; {len(new)} submitted\n")
    if new:
        queue.submit(new, workers)
    if not missing:
        return _finish(progress, queue.folder)
    counts = Counter(queued.get(job.name, "waiting") for job in missing)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    sys.stdout.write(f"{states}; to cancel them: {queue.cancel_command([job.name for job in missing])}\n")
    if not waits:
        progress.write()
        return 0
    try:
        queue.wait(missing, progress.report)
    except KeyboardInterrupt:
        sys.stderr.write(f"fedvlp: no longer watching, and the runs stay in Slurm's queue; {RESUMES} the watch\n")
        return 130
    return _finish(progress, queue.folder)


def _finish(progress: SweepProgress, output: Path) -> int:
    """Prints the table of the runs that are done, and what failed, and returns the exit code."""
    progress.write()
    if len(progress.missing) < len(progress.jobs):
        run_compare([str(output), "--row=last"])
    return progress.print_failures()


def _slurm_options(in_file: Any, options: argparse.Namespace) -> SlurmOptions | None:
    """Reads the launcher: that of the sweep's file, with options in place of its own, or another one."""
    chosen = {name: getattr(options, f"slurm.{name}") for name in (*OPTIONS, "setup")}
    launcher = {"name": in_file} if isinstance(in_file, str) else in_file
    if isinstance(launcher, dict):
        if options.launcher not in (None, launcher.get("name")):
            launcher = {"name": options.launcher}
        launcher = launcher | {name: value for name, value in chosen.items() if value is not None}
    return read_launcher(launcher)


def parse_methods(plan: Sweep) -> dict[str, Namespace]:
    """Returns each method's configuration by its label; the runs differ from it in held-out domain and seed alone.

    Raises:
        UserError: if ``fedvlp fit`` would refuse the arguments, or a plug-in that they name can't be used.
    """
    # Parsing must not seed this process's generators.
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
            config = with_plain_numbers(parser.parse_args([*start, *given]))
            if config.trainer.fast_dev_run:
                raise UserError("A sweep keeps results, and fast_dev_run none. Try a method with fedvlp fit.")
            configs[method.label] = config
        except ArgumentError as error:
            raise UserError(f"Model {method.label!r} of the sweep: {error}") from error
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
        # Options that change no domain, so that methods which differ in them share one lookup.
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
    holds_out = protocol is None or PROTOCOLS[protocol].holds_domains_out
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
