"""What a sweep consists of: methods, held-out domains and seeds, and each combination of them as a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.config_files import find_config


@dataclass(frozen=True)
class Row:
    """A method as it stands in the table.

    Attributes:
        label: what progress and folders call it.
        config: name or path of its config.
        arguments: further arguments of ``fedvlp fit`` for its runs alone.
    """

    label: str
    config: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The axes of the cross product.

    Attributes:
        configs: names or paths of the configs that all runs share.
        rows: the methods.
        held_out: domains held out in turn; ``all``; or ``none``, where every domain has clients.
        seeds: seeds of training.
        arguments: further arguments of ``fedvlp fit`` for every run.
    """

    configs: tuple[str, ...]
    rows: tuple[Row, ...]
    held_out: str | tuple[str, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...] = ()

    def choices(self, row: Row) -> tuple[str, ...]:
        """Returns the arguments that a method's runs share; the later ones count: those of its own stand last."""
        configs = [f"--config={config}" for config in (row.config, *self.configs)]
        return (*configs, *self.arguments, *row.arguments)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        row: the method.
        held_out: the held-out domain; None if every domain has clients.
        seed: seed of training.
        choices: the arguments that choose all else.
    """

    row: Row
    held_out: str | None
    seed: int
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's folder below the sweep's."""
        return run_name(self.row.label, self.choices, self.held_out, self.seed)

    @property
    def axes(self) -> dict[str, Any]:
        """Where it stands in the cross product."""
        return {"model": self.row.label, "config": self.row.config, "held_out": self.held_out, "seed": self.seed}

    def arguments(self, output: Path, first: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the arguments of ``fedvlp`` that make it, or go on with it, below ``output``.

        Args:
            output: the sweep's folder.
            first: arguments that all others override, and that no run is named after.
        """
        return (
            "fit",
            *first,
            *self.choices,
            f"--data.held_out={self.held_out or 'null'}",
            f"--seed_everything={self.seed}",
            f"--trainer.default_root_dir={output}",
            f"--trainer.name={self.name}",
            "--ckpt_path=last",
        )


def run_name(label: str, choices: Sequence[str], held_out: str | None, seed: int) -> str:
    """Returns a folder's name for people, with a digest of what the configs say and of all other arguments.

    >>> run_name("trip", ["--trainer.rounds=3"], "photo", 0)
    'trip-138eb97f/photo-0'
    """
    digest = hashlib.sha256(json.dumps([_settings(argument) for argument in choices]).encode())
    kind = re.sub(r"[^\w.-]+", "_", label)[:80]
    domain = re.sub(r"[./\\]", "_", held_out or "all_seen")
    return f"{kind}-{digest.hexdigest()[:8]}/{domain}-{seed}"


def _settings(argument: str) -> Any:
    """Returns an argument, or what stands in the config that it names, so that a config's comments do not count."""
    name, _, value = argument.partition("=")
    return yaml.safe_load(Path(find_config(value)).read_text(encoding="utf-8")) if name == "--config" else argument


def all_runs(sweep: Sweep, domains: Mapping[str, Sequence[str]]) -> list[Run]:
    """Returns the runs, one seed of all methods after the other: the later seeds find every feature in the cache.

    Args:
        sweep: the axes.
        domains: for each row's label the domains that are held out in turn; none for a row where all have clients.
    """
    return [
        Run(row, domain, seed, sweep.choices(row))
        for seed in sweep.seeds
        for row in sweep.rows
        for domain in (domains[row.label] or [None])  # type: ignore[list-item]
    ]
