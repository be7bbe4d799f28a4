"""Bundled configs hold only values that differ from the constructors' defaults."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from inspect import isfunction
from typing import Any

import pytest
import torch

import fedvlp
from fedvlp.federation import Federation
from fedvlp.tools.compare.grouping import DEFAULT_ROUNDS
from fedvlp.utils.config_files import bundled_configs, read_yaml
from fedvlp.utils.digests import constructor_arguments


def class_of(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module) if module else fedvlp, name)


def repeated(name: str, value: Any, default: Any) -> Iterator[str]:
    """Yield the names of all values that are their option's default."""
    if isfunction(default):  # makes an optimizer
        default = default([torch.nn.Parameter(torch.zeros(1))])
    if isinstance(value, dict) and value.keys() & {"class_path", "init_args"}:
        kind = class_of(value["class_path"]) if "class_path" in value else type(default)
        is_default = isinstance(default, torch.optim.Optimizer) and kind is type(default)
        if is_default and "class_path" in value:
            yield f"{name}.class_path"
        options = {option: parameter.default for option, parameter in constructor_arguments(kind).items()}
        options |= default.defaults if is_default else {}
        for option, inner in value.get("init_args", {}).items():
            yield from repeated(f"{name}.{option}", inner, options[option])
    elif isinstance(value, dict) and is_dataclass(default):
        for option, inner in value.items():
            yield from repeated(f"{name}.{option}", inner, getattr(default, option))
    elif value == default:
        yield name


@pytest.mark.parametrize("config", bundled_configs())
def test_a_config_repeats_no_default(config):
    content = read_yaml(bundled_configs()[config])
    assert content.keys() <= {"model", "data", "trainer"}
    found = []
    for name, value in content.get("trainer", {}).items():
        found += repeated(name, value, constructor_arguments(Federation)[name].default)
    # A config without a class follows a config that names the class, so it may also restore a default.
    for section in ("model", "data"):
        if "class_path" in content.get(section, {}):
            found += repeated(section, content[section], None)
    assert found == []


def test_default_rounds_of_configs():
    assert constructor_arguments(Federation)["rounds"].default == DEFAULT_ROUNDS
