"""The plan of a sweep: one run for each combination of method, held-out domain and seed."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.tools.sweep.jobs import Job
from fedvlp.utils.config_files import CONFIG_OPTION, find_config, names_a_method, read_yaml, sort_options
from fedvlp.utils.errors import UserError

KEYS = ("config", "models", "held_out", "seeds", "arguments", "note")
TOGETHER = "+"
"""Separator of domains that are held out together."""
SET_BY_SWEEP = (
    *("--data.held_out", "--data.init_args.held_out", "--seed_everything", "--model", "--model.class_path"),
    *("--trainer.default_root_dir", "--trainer.name", "--ckpt_path", "--print_config"),
)
"""Options of ``fedvlp fit`` that a sweep sets for each run."""


@dataclass(frozen=True)
class SweepMethod:
    """A method of a sweep: its label in folder names, its config, and further arguments of ``fedvlp fit``."""

    label: str
    config: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The axes of a sweep.

    Attributes:
        configs: Names or paths of configs shared by all runs.
        methods: The methods.
        held_out: Domains held out in turn, with ``a+b`` for two together; ``all`` domains if the protocol holds domains
            out; or ``none``, to train on all domains.
        seeds: Seeds of training.
        arguments: Further arguments of ``fedvlp fit`` for all runs.
    """

    configs: tuple[str, ...]
    methods: tuple[SweepMethod, ...]
    held_out: str | tuple[str, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...] = ()

    def choices(self, method: SweepMethod) -> tuple[str, ...]:
        """List the arguments that a method's runs share; later arguments override earlier ones."""
        configs = [f"{CONFIG_OPTION}{config}" for config in (method.config, *self.configs)]
        return (*configs, *self.arguments, *method.arguments)

    def jobs(self, domains: Mapping[str, Sequence[str | None]], output: Path) -> list[Job]:
        """List the runs, given an output folder and the held-out domains by method label; None if all train."""
        jobs = []
        # Seeds are the outer loop, because the first seed fills the cache of image features for the others.
        for seed in self.seeds:
            for method in self.methods:
                choices = self.choices(method)
                for held_out in domains[method.label]:
                    name = run_name(method.label, choices, held_out, seed)
                    arguments = fit_arguments(choices, held_out, seed, output, name)
                    axes = {"model": method.label, "config": method.config, "held_out": held_out, "seed": seed}
                    jobs.append(Job(name, arguments, output / name, axes))
        return jobs


def read_sweep(path: Path) -> dict[str, Any]:
    """Read the file of a sweep; its keys must be in ``KEYS``."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping with keys from {', '.join(KEYS)}.")
    for key in content:
        if key not in KEYS:
            raise UserError(f"{path}: unknown key {key!r}. Choose from {', '.join(KEYS)}.")
    return content


def make_sweep(content: Mapping[str, Any], more: Sequence[str] = ()) -> Sweep:
    """Make a sweep from the content of a file, or from equivalent options, and further arguments."""
    configs = _strings(content.get("config"))
    for config in configs:
        if names_a_method(find_config(config)):
            raise UserError(f"The config {config!r} chooses a method for all runs. Put it under models.")
    methods = tuple(_method(model) for model in _as_list(content.get("models")))
    if not methods:
        raise UserError("A sweep needs at least one method. Pass e.g. --models trip,promptfl.")
    labels = [method.label for method in methods]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"Several models have the label {repeated[0]!r}. Give each its own label in the sweep's file.")
    # A domain may be named "all" or "none" only if there are several.
    held_out = _strings(content.get("held_out", "all"))
    if not held_out:
        raise UserError(f"Expected held_out to be all, none or domains; got {content['held_out']!r}.")
    seeds = _as_list(content.get("seeds", [0, 1, 2]))
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds):
        raise UserError(f"Expected seeds to be non-negative integers, e.g. [0, 1, 2]; got {seeds!r}.")
    arguments = tuple(sort_options((*_strings(content.get("arguments")), *more)))
    for argument in (*arguments, *(argument for method in methods for argument in method.arguments)):
        name = argument.partition("=")[0]
        if name in SET_BY_SWEEP:
            raise UserError(f"A sweep sets {name} for each run. Remove it; see `fedvlp sweep --help`.")
    return Sweep(
        configs,
        methods,
        held_out[0] if held_out in (("all",), ("none",)) else tuple(dict.fromkeys(held_out)),
        tuple(dict.fromkeys(seeds)),
        arguments,
    )


def _method(model: Any) -> SweepMethod:
    content = {"config": model} if isinstance(model, str) else model
    is_mapping = isinstance(content, dict) and isinstance(content.get("config"), str)
    if not is_mapping or content.keys() - {"label", "config", "arguments"}:
        raise UserError(f"Expected a model to be the name of a config, or label, config and arguments; got {model!r}.")
    config = content["config"]
    if not names_a_method(find_config(config)):
        raise UserError(f"Expected models to be configs of methods; {config!r} has no model.class_path.")
    label = str(content.get("label", Path(config).stem))
    return SweepMethod(label, config, tuple(sort_options(_strings(content.get("arguments")))))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(map(str, _as_list(value)))


def fit_arguments(choices: Sequence[str], held_out: str | None, seed: int, output: Path, name: str) -> tuple[str, ...]:
    """List the arguments of ``fedvlp`` that start or resume a run in the folder ``output / name``."""
    names = f"[{','.join(held_out.split(TOGETHER))}]" if held_out and TOGETHER in held_out else held_out
    return (
        "fit",
        *choices,
        f"--data.held_out={names or 'null'}",
        f"--seed_everything={seed}",
        f"--trainer.default_root_dir={output}",
        f"--trainer.name={name}",
        # Starts from scratch if there is no checkpoint, so one command covers both cases.
        "--ckpt_path=last",
    )


def run_name(label: str, choices: Sequence[str], held_out: str | None, seed: int) -> str:
    """Make a readable folder name, with a digest of the content of configs and all other arguments.

    >>> run_name("trip", ["--trainer.rounds=3"], "photo", 0)
    'trip-138eb97f/photo-0'
    """
    settings: list[Any] = []
    for argument in choices:
        # Different arguments need a different folder, but renaming or commenting a config must not change it.
        is_config = argument.startswith(CONFIG_OPTION)
        settings.append(read_yaml(Path(find_config(argument.removeprefix(CONFIG_OPTION)))) if is_config else argument)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    # Names may contain spaces and slashes, and Windows forbids further characters.
    method = re.sub(r"[^\w.-]+", "_", label)[:80]
    domain = re.sub(r"[./\\]", "_", held_out or "all_seen")
    return f"{method}-{digest}/{domain}-{seed}"
