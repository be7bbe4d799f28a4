"""A sweep as its file, or options of the same names, describe it, checked before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.tools.sweep.plan import Sweep, SweepMethod
from fedvlp.utils.config_files import find_config, join_configs, names_a_method
from fedvlp.utils.errors import UserError
from fedvlp.utils.yaml_limits import read_yaml

KEYS = ("config", "models", "held_out", "seeds", "arguments", "launcher", "note")
SET_BY_SWEEP = {
    "--data.held_out": "--held_out",
    "--data.init_args.held_out": "--held_out",
    "--seed_everything": "--seeds",
    "--model": "--models",
    "--model.class_path": "--models",
    "--trainer.default_root_dir": "--output",
    "--trainer.name": "--output",
    "--ckpt_path": "the same sweep again: it goes on where it was stopped",
    "--print_config": "--dry_run",
}
"""Options of ``fedvlp fit`` that differ between the runs of a sweep, and what to use in place of each."""


def read_sweep(path: Path) -> dict[str, Any]:
    """Returns the content of a sweep's file.

    Raises:
        UserError: if it can't be read, or has a key that no sweep has.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"Expected {path} to have some of the keys {', '.join(KEYS)}; it has none.")
    for key in content:
        if key not in KEYS:
            raise UserError(f"The sweep {path} has the key {key!r}; a sweep has {', '.join(KEYS)}.")
    return content


def make_sweep(content: Mapping[str, Any], more: Sequence[str] = ()) -> Sweep:
    """Returns the sweep that a file's content, or options of the same names, ask for.

    Args:
        content: ``config``, ``models``, ``held_out``, ``seeds`` and ``arguments``.
        more: arguments of every run that override those of the content.

    Raises:
        UserError: if something is missing or impossible, or a config does not exist.
    """
    configs = _texts(content, "config")
    arguments = tuple(join_configs((*_texts(content, "arguments"), *more)))
    for config in configs:
        if names_a_method(find_config(config)):
            raise UserError(f"The config {config!r} names a method, which all runs would share. Put it under models.")
    sweep = Sweep(configs, _methods(content), _held_out(content), _seeds(content), arguments)
    _check_arguments(arguments)
    for method in sweep.methods:
        _check_arguments(method.arguments)
    return sweep


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raises UserError for an argument that the sweep itself gives to each run."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in SET_BY_SWEEP:
            raise UserError(f"A sweep sets {name} itself, for each run. Use {SET_BY_SWEEP[name]}.")


def _methods(content: Mapping[str, Any]) -> tuple[SweepMethod, ...]:
    """Returns the methods.

    Raises:
        UserError: if there is none, or two are called the same.
    """
    methods = tuple(_method(model) for model in _listed(content, "models"))
    if not methods:
        raise UserError("A sweep needs at least one method. Name some, for instance --models trip,promptfl.")
    label, count = Counter(method.label for method in methods).most_common(1)[0]
    if count > 1:
        raise UserError(f"{count} models are called {label!r}. Give each a label of its own in the sweep's file.")
    return methods


def _method(model: Any) -> SweepMethod:
    """Returns a method from its name, or from label, config and arguments."""
    content = {"config": model} if isinstance(model, str) else model
    known = {"label", "config", "arguments"}
    if not isinstance(content, dict) or not isinstance(content.get("config"), str) or content.keys() - known:
        raise UserError(f"Expected a model as a config's name, or as label, config and arguments; got {model!r}.")
    config = _method_config(content["config"])
    label = str(content.get("label", Path(config).stem))
    return SweepMethod(label, config, tuple(join_configs(_texts(content, "arguments"))))


def _method_config(name: str) -> str:
    """Returns the name or path of a method's config.

    Raises:
        UserError: if it does not exist or names no method.
    """
    config = name
    if not Path(name).is_file() and "/" not in name:
        config = f"methods/{name}"
    try:
        path = find_config(config)
    except UserError:
        config = name
        path = find_config(name)
    if not names_a_method(path):
        raise UserError(f"Expected configs of methods as models; {name!r} has no model.class_path.")
    return config


def _held_out(content: Mapping[str, Any]) -> str | tuple[str, ...]:
    """Returns the domains that are held out in turn."""
    given = content.get("held_out", "all")
    if given in ("all", "none"):
        return str(given)
    if not _texts(content, "held_out"):
        raise UserError(f"Expected held_out to be all, none or domains; got {given!r}.")
    return tuple(dict.fromkeys(_texts(content, "held_out")))


def _seeds(content: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the seeds."""
    given = _listed(content, "seeds") if "seeds" in content else [0]
    if not given or not all(type(seed) is int and 0 <= seed < 2**32 for seed in given):
        raise UserError(f"Expected seeds to be whole numbers of at least 0, such as [0, 1, 2]; got {given!r}.")
    return tuple(dict.fromkeys(given))


def _listed(content: Mapping[str, Any], key: str) -> list[Any]:
    """Returns a list of the content, empty if it is not there."""
    value = content.get(key)
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Returns a list of words."""
    return tuple(str(value) for value in _listed(content, key))
