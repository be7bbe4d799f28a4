"""The options of ``fedvlp sweep``, and what they put in the place of a sweep file's content."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlp.tools.sweep import read_sweep
from fedvlp.tools.sweep.slurm_options import LAUNCHERS, OPTIONS, SETUP

MOST_WORKERS = 4096
PREFIX = "slurm."


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the sweep's own arguments, and those of every fit: dotted options, and all that stands after ``--``.

    Options of Slurm are the sweep's own, though they have a dot.

    >>> split_arguments(["--models", "trip", "--trainer.rounds", "3", "--slurm.mem=8G", "--", "--print"])
    (['--models', 'trip', '--slurm.mem=8G'], ['--trainer.rounds', '3', '--print'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    of_fit: list[str] = []
    chosen = own
    for word in arguments[:end]:
        if word.startswith("--"):
            is_of_fit = "." in word.partition("=")[0] and not word.startswith(f"--{PREFIX}")
            chosen = of_fit if is_of_fit else own
        chosen.append(word)
    return own, [*of_fit, *arguments[end + 1 :]]


def sweep_content(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the content of the sweep's file, with the options in place of what it says."""
    content = read_sweep(options.file) if options.file else {}
    given = {name: getattr(options, name) for name in ("config", "models", "held_out", "seeds")}
    content |= {name: value for name, value in given.items() if value is not None}
    return content | {"launcher": _launcher(content.get("launcher", "local"), options)}


def _launcher(in_file: Any, options: argparse.Namespace) -> Any:
    """Returns the launcher: that of the file, with options in place of its own, or another one."""
    given = {name: getattr(options, PREFIX + name) for name in (*OPTIONS, SETUP)}
    given = {name: value for name, value in given.items() if value is not None}
    launcher = {"name": in_file} if isinstance(in_file, str) else in_file
    if not isinstance(launcher, dict):
        return in_file
    if options.launcher not in (None, launcher.get("name")):
        launcher = {"name": options.launcher}
    return launcher | given


def sweep_parser() -> argparse.ArgumentParser:
    """Returns the parser of the sweep's own options."""
    parser = argparse.ArgumentParser(
        prog="fedvlp sweep",
        description="Make a run for each method, held-out domain and seed. Called again, it goes on with what is "
        "missing. Options with a dot, and arguments after --, go to every fedvlp fit.",
        epilog="fedvlp sweep --config data/folders --models zero_shot,promptfl,trip --held_out all --seeds 0,1,2 "
        "--output runs/first --data.root photos --trainer.rounds 10",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--file", type=Path, help="YAML file with config, models, held_out, seeds, arguments, launcher and note"
    )
    parser.add_argument("--config", action="append", help="config that all runs share; several are allowed")
    parser.add_argument("--models", type=_words, help="configs of methods, a,b,c")
    parser.add_argument(
        "--held_out",
        type=_domains,
        help="domains held out in turn, a,b,c; all, if the protocol holds any out (if not given); or none",
    )
    parser.add_argument("--seeds", type=_numbers, help="seeds of training, a,b,c; 0 if not given")
    parser.add_argument("--output", type=Path, help="folder of the runs; runs/sweep or runs/<file> if not given")
    parser.add_argument("--workers", type=_count, help="runs at a time; all GPUs or half of the cores if not given")
    parser.add_argument("--dry_run", action="store_true", help="only print the runs")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="where runs are made; local if not given")
    parser.add_argument(
        "--wait", choices=("true", "false"), default="true", help="false: only submit to Slurm and say what is there"
    )
    slurm = parser.add_argument_group("with --launcher slurm, each run is a job")
    for name, meaning in OPTIONS.items():
        slurm.add_argument(f"--{PREFIX}{name}", help=meaning, metavar=name.upper())
    slurm.add_argument(f"--{PREFIX}{SETUP}", action="append", help="line of shell before the run; several are allowed")
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
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 0,1,2; got {text!r}")
    return [int(word) for word in _words(text)]


def _count(text: str) -> int:
    """Returns a number of processes."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"expected a number in [1, {MOST_WORKERS}]; got {text!r}")
    return int(text)
