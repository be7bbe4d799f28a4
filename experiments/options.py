"""Command-line options shared by the studies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.runs import Setting


@dataclass(frozen=True)
class Choice:
    """The parsed command line.

    Attributes:
        options: All parsed options, including the study's own.
        setting: Data, CLIP, folder and further arguments.
        held_out: Domains, or groups of domains a+b, to hold out in turn; a single none to train on all domains.
        seeds: Seeds of training.
        workers: Number of simultaneous runs.
    """

    options: argparse.Namespace
    setting: Setting
    held_out: tuple[str | None, ...]
    seeds: tuple[int, ...]
    workers: int


def shared_parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Make a parser with the options of all studies.

    Args:
        description: Description of the command.
        rounds: Number of rounds; default: from each method's config.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Arguments after -- are passed to every fedvlp fit, e.g. -- --trainer.accelerator=gpu",
    )
    parser.add_argument(
        "--data", default="styled_shapes", help="icon_domains, styled_shapes, or a folder DOMAIN/CLASS/image"
    )
    parser.add_argument("--clip", default="fedvlp-tiny", help="name of the frozen CLIP, such as ViT-B-16")
    parser.add_argument(
        "--held_out",
        help="domains held out in turn: a,b,c; groups: a+b,c+d; all; or none, to train on all",
    )
    parser.add_argument("--seeds", default="0,1,2", help="seeds of training, a,b,c")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of every run, instead of each config's")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    parser.add_argument("--output", type=Path, default=Path("runs/studies"), help="folder of the runs")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, held_out: str = "all") -> Choice:
    """Parse the command line.

    Args:
        parser: From ``shared_parser``, with the study's own options.
        arguments: Arguments; default: the command line.
        held_out: Default of ``--held_out``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    more: list[str] = []
    if options.rounds is not None:
        more = [f"--trainer.rounds={options.rounds}", f"--trainer.evaluate_every={options.rounds}"]
    setting = Setting(options.data, options.clip, options.output, (*more, *given[end + 1 :]))
    domains = chosen_domains(options.held_out or held_out, setting)
    seeds = tuple(int(seed) for seed in options.seeds.split(","))
    return Choice(options, setting, domains, seeds, options.workers)


def chosen_domains(held_out: str, setting: Setting) -> tuple[str | None, ...]:
    """List the domains in ``--held_out``."""
    if held_out == "none":
        return (None,)
    return tuple(setting.domains() if held_out == "all" else held_out.split(","))
