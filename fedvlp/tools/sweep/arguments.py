"""The options of ``fedvlp sweep``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedvlp.tools.sweep.slurm import OPTIONS

SLURM_PREFIX = "--slurm."


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into the command's own arguments, and those of every fit.

    Options with a dot, and all after ``--``, are of fit. Options of Slurm are the sweep's, though they have a dot.

    >>> split_arguments(["--models", "trip", "--trainer.rounds", "3", "--slurm.mem=8G", "--", "--print"])
    (['--models', 'trip', '--slurm.mem=8G'], ['--trainer.rounds', '3', '--print'])
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    of_fit: list[str] = []
    target = own
    for word in arguments[:end]:
        if word.startswith("--"):
            is_of_fit = "." in word.partition("=")[0] and not word.startswith(SLURM_PREFIX)
            target = of_fit if is_of_fit else own
        target.append(word)
    return own, [*of_fit, *arguments[end + 1 :]]


def sweep_parser() -> argparse.ArgumentParser:
    """Makes the parser of the sweep's own options."""
    parser = argparse.ArgumentParser(
        prog="fedvlp sweep",
        description="Make a run for each method, held-out domain and seed. Called again, it resumes with what is "
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
        type=_words,
        help="domains held out in turn, a,b,c; all, if the protocol holds any out (if not given); or none",
    )
    parser.add_argument("--seeds", type=_seeds, help="seeds of training, a,b,c; 0 if not given")
    parser.add_argument("--output", type=Path, help="folder of the runs; runs/sweep or runs/<file> if not given")
    parser.add_argument("--workers", type=_workers, help="runs at a time; all GPUs or half of the cores if not given")
    parser.add_argument("--dry_run", action="store_true", help="only print the runs")
    parser.add_argument("--launcher", choices=("local", "slurm"), help="where runs are made; local if not given")
    parser.add_argument(
        "--wait", choices=("true", "false"), default="true", help="false: only submit to Slurm and print what is there"
    )
    slurm = parser.add_argument_group("with --launcher slurm, each run is a task of a job array")
    for name, meaning in OPTIONS.items():
        slurm.add_argument(f"{SLURM_PREFIX}{name}", help=meaning, metavar=name.upper())
    slurm.add_argument(
        f"{SLURM_PREFIX}setup", action="append", help="line of shell before the run; several are allowed"
    )
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _seeds(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _workers(text: str) -> int:
    workers = int(text)
    if workers < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 run at a time; got {workers}")
    return workers
