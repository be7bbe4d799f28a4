"""The plan of a sweep: a run for each combination of methods, held-out domains and seeds."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.tools.sweep.jobs import Job
from fedvlp.utils.config_files import CONFIG_OPTION, find_config, in_order, names_a_method, read_yaml
from fedvlp.utils.errors import UserError

KEYS = ("config", "models", "held_out", "seeds", "arguments", "note")
TOGETHER = "+"
"""Between domains that are held out together."""
SET_BY_SWEEP = (
    *("--data.held_out", "--data.init_args.held_out", "--seed_everything", "--model", "--model.class_path"),
    *("--trainer.default_root_dir", "--trainer.name", "--ckpt_path", "--print_config"),
)
"""Options of ``fedvlp fit`` that differ between the runs of a sweep."""


@dataclass(frozen=True)
class SweepMethod:
    """A method of a sweep, with a label for folders, its config, and further arguments of ``fedvlp fit``."""

    label: str
    config: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The axes of the cross product.

    Attributes:
        configs: Names or paths of the configs that all runs share.
        methods: The methods.
        held_out: Domains held out in turn, ``a+b`` for two together; ``all`` domains of a protocol that holds domains
            out; or ``none``, so that every domain has clients.
        seeds: Seeds of training.
        arguments: Further arguments of ``fedvlp fit`` for every run.
    """

    configs: tuple[str, ...]
    methods: tuple[SweepMethod, ...]
    held_out: str | tuple[str, ...]
    seeds: tuple[int, ...]
    arguments: tuple[str, ...] = ()

    def choices(self, method: SweepMethod) -> tuple[str, ...]:
        """Arguments that a method's runs share; later ones override earlier ones."""
        configs = [f"{CONFIG_OPTION}{config}" for config in (method.config, *self.configs)]
        return (*configs, *self.arguments, *method.arguments)

    def jobs(self, domains: Mapping[str, Sequence[str]], output: Path) -> list[Job]:
        """List the runs in a folder, by a method's label and the domains that it holds out in turn."""
        jobs = []
        # Seeds are the outer loop: the first one fills the cache of image features, which the others then read.
        for seed in self.seeds:
            for method in self.methods:
                choices = self.choices(method)
                in_turn: Sequence[str | None] = domains[method.label] or [None]
                for held_out in in_turn:
                    name = run_name(method.label, choices, held_out, seed)
                    arguments = fit_arguments(choices, held_out, seed, output, name)
                    axes = {"model": method.label, "config": method.config, "held_out": held_out, "seed": seed}
                    jobs.append(Job(name, arguments, output / name, axes))
        return jobs


def read_sweep(path: Path) -> dict[str, Any]:
    """Read a sweep's file, which must have no other keys than ``KEYS``."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"Expected {path} to have some of the keys {', '.join(KEYS)}; it has none.")
    for key in content:
        if key not in KEYS:
            raise UserError(f"The sweep {path} has the key {key!r}; a sweep has {', '.join(KEYS)}.")
    return content


def make_sweep(content: Mapping[str, Any], more: Sequence[str] = ()) -> Sweep:
    """Make a sweep from a file's content or equal options and further arguments, or raise UserError."""
    configs = _strings(content.get("config"))
    for config in configs:
        if names_a_method(find_config(config)):
            raise UserError(f"The config {config!r} names a method, which all runs would share. Put it under models.")
    methods = tuple(_method(model) for model in _as_list(content.get("models")))
    if not methods:
        raise UserError("A sweep needs at least one method. Name some, for instance --models trip,promptfl.")
    labels = [method.label for method in methods]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"Several models are called {repeated[0]!r}. Give each its own label in the sweep's file.")
    # A domain may be called "all" or "none" only among others.
    held_out = _strings(content.get("held_out", "all"))
    if not held_out:
        raise UserError(f"Expected held_out to be all, none or domains; got {content['held_out']!r}.")
    seeds = _as_list(content.get("seeds", [0, 1, 2]))
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds):
        raise UserError(f"Expected seeds to be integers of at least 0, such as [0, 1, 2]; got {seeds!r}.")
    arguments = tuple(in_order((*_strings(content.get("arguments")), *more)))
    for argument in (*arguments, *(argument for method in methods for argument in method.arguments)):
        name = argument.partition("=")[0]
        if name in SET_BY_SWEEP:
            raise UserError(f"A sweep sets {name} itself, for each run. `fedvlp sweep --help` lists its own options.")
    return Sweep(
        configs,
        methods,
        held_out[0] if held_out in (("all",), ("none",)) else tuple(dict.fromkeys(held_out)),
        tuple(dict.fromkeys(seeds)),
        arguments,
    )


def _method(model: Any) -> SweepMethod:
    """Make a method from its config's name, or from a mapping of label, config and arguments."""
    content = {"config": model} if isinstance(model, str) else model
    is_mapping = isinstance(content, dict) and isinstance(content.get("config"), str)
    if not is_mapping or content.keys() - {"label", "config", "arguments"}:
        raise UserError(f"Expected a model as a config's name, or as label, config and arguments; got {model!r}.")
    config = content["config"]
    if not names_a_method(find_config(config)):
        raise UserError(f"Expected configs of methods as models; {config!r} has no model.class_path.")
    label = str(content.get("label", Path(config).stem))
    return SweepMethod(label, config, tuple(in_order(_strings(content.get("arguments")))))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(map(str, _as_list(value)))


def fit_arguments(choices: Sequence[str], held_out: str | None, seed: int, output: Path, name: str) -> tuple[str, ...]:
    """List the arguments of ``fedvlp`` that begin or resume a run in the folder ``output / name``."""
    names = f"[{','.join(held_out.split(TOGETHER))}]" if held_out and TOGETHER in held_out else held_out
    return (
        "fit",
        *choices,
        f"--data.held_out={names or 'null'}",
        f"--seed_everything={seed}",
        f"--trainer.default_root_dir={output}",
        f"--trainer.name={name}",
        # Begins if there is no checkpoint yet, so one command serves both.
        "--ckpt_path=last",
    )


def run_name(label: str, choices: Sequence[str], held_out: str | None, seed: int) -> str:
    """Make a readable folder name with a digest of the configs' content and of all other arguments.

    >>> run_name("trip", ["--trainer.rounds=3"], "photo", 0)
    'trip-138eb97f/photo-0'
    """
    settings: list[Any] = []
    for argument in choices:
        # Other arguments must make another run, and a renamed or commented config the same one.
        is_config = argument.startswith(CONFIG_OPTION)
        settings.append(read_yaml(Path(find_config(argument.removeprefix(CONFIG_OPTION)))) if is_config else argument)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    # Names of methods and domains may have spaces and slashes, and Windows refuses more.
    method = re.sub(r"[^\w.-]+", "_", label)[:80]
    domain = re.sub(r"[./\\]", "_", held_out or "all_seen")
    return f"{method}-{digest}/{domain}-{seed}"
