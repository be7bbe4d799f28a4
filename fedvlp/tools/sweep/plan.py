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

from fedvlp.utils.config_files import CONFIG_OPTION, find_config


@dataclass(frozen=True)
class SweepMethod:
    """A method as a sweep runs it.

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
        methods: the methods.
        held_out: domains held out in turn; ``all`` that the protocol holds out; or ``none``, where every domain has
            clients.
        seeds: seeds of training.
        arguments: further arguments of ``fedvlp fit`` for every run.
    """

    configs: tuple[str, ...]
    methods: tuple[SweepMethod, ...]
    held_out: str | tuple[str, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...] = ()

    def choices(self, method: SweepMethod) -> tuple[str, ...]:
        """Returns the arguments that a method's runs share; the later ones count: those of its own stand last."""
        configs = [f"--config={config}" for config in (method.config, *self.configs)]
        return (*configs, *self.arguments, *method.arguments)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        method: the method.
        held_out: the held-out domain; None if every domain has clients.
        seed: seed of training.
        choices: the arguments that choose all else.
    """

    method: SweepMethod
    held_out: str | None
    seed: int
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's folder below the sweep's."""
        return run_name(self.method.label, self.choices, self.held_out, self.seed)

    @property
    def axes(self) -> dict[str, Any]:
        """Where it stands in the cross product."""
        return {"model": self.method.label, "config": self.method.config, "held_out": self.held_out, "seed": self.seed}

    def arguments(self, output: Path, first: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the arguments of ``fedvlp`` that make it, or go on with it, below ``output``.

        Args:
            output: the sweep's folder.
            first: arguments that all others override, and that no run is named after.
        """
        return fit_arguments((*first, *self.choices), self.held_out, self.seed, output, self.name)


def fit_arguments(choices: Sequence[str], held_out: str | None, seed: int, output: Path, name: str) -> tuple[str, ...]:
    """Returns the arguments of ``fedvlp`` that make a run, or go on with it.

    Args:
        choices: the arguments that choose all else.
        held_out: the held-out domain; None if every domain has clients.
        seed: seed of training.
        output: folder below which the run's own is.
        name: the run's folder below it.
    """
    return (
        "fit",
        *choices,
        f"--data.held_out={held_out or 'null'}",
        f"--seed_everything={seed}",
        f"--trainer.default_root_dir={output}",
        f"--trainer.name={name}",
        "--ckpt_path=last",
    )


def run_name(label: str, choices: Sequence[str], held_out: str | None, seed: int) -> str:
    """Returns a folder's name for people, with a digest of what the configs say and of all other arguments.

    >>> run_name("trip", ["--trainer.rounds=3"], "photo", 0)
    'trip-138eb97f/photo-0'
    """
    digest = hashlib.sha256(json.dumps([_settings(argument) for argument in choices]).encode())
    method = re.sub(r"[^\w.-]+", "_", label)[:80]
    domain = re.sub(r"[./\\]", "_", held_out or "all_seen")
    return f"{method}-{digest.hexdigest()[:8]}/{domain}-{seed}"


def _settings(argument: str) -> Any:
    """Returns an argument, or what stands in the config that it names, so that a config's comments do not count."""
    if not argument.startswith(CONFIG_OPTION):
        return argument
    path = find_config(argument.removeprefix(CONFIG_OPTION))
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def all_runs(sweep: Sweep, domains: Mapping[str, Sequence[str]]) -> list[Run]:
    """Returns the runs, one seed of all methods after the other: the later seeds find every feature in the cache.

    Args:
        sweep: the axes.
        domains: for each method's label the domains that are held out in turn; none where all have clients.
    """
    runs = []
    for seed in sweep.seeds:
        for method in sweep.methods:
            held_out = domains[method.label] or (None,)
            runs += [Run(method, domain, seed, sweep.choices(method)) for domain in held_out]
    return runs
