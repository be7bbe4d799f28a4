"""Methods, data and federations made from configs, without the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

import fedvlp.methods  # noqa: F401 (its classes are then known by their short names)
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.training.options import link_method_options
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.plugins import import_plugins

if TYPE_CHECKING:
    from fedvlp.federation import Federation

SEED = "seed_everything"


class Parts(NamedTuple):
    """What a config makes.

    Attributes:
        model: the method.
        data: its data module.
        federation: what trains it.
        config: all options as YAML, those that were not given included.
        options: the same as values that JSON can hold.
    """

    model: FederatedModule
    data: FederatedDataModule
    federation: Federation
    config: str
    options: dict[str, Any]


def build_method(config: Mapping[str, Any], seed: int) -> FederatedModule:
    """Returns a method from its class and options.

    Args:
        config: ``class_path`` and ``init_args``, with all that the method is told of data and federation.
        seed: of what the method draws when it is made.

    Raises:
        UserError: if it can't be made.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedModule, "model", required=True, fail_untyped=False)
    L.seed_everything(seed, workers=True, verbose=False)
    parsed = _parsed(parser, {"model": dict(config)})
    with unwrapped_errors():
        made = parser.instantiate(parsed)
    model: FederatedModule = made["model"]
    return model


def build_parts(path: Path) -> Parts:
    """Returns what a config makes, as ``fedvlp fit --config`` does.

    Args:
        path: a config with ``model``, ``data`` and ``trainer``.

    Raises:
        UserError: if there is none, or something in it is wrong.
    """
    # A site makes its method in this file, too, and has no use for figures and reports, which the federation imports.
    from fedvlp.federation import Federation

    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"Expected a config with keys such as model, data and trainer in {path}; found none.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument(f"--{SEED}", type=int, default=0)
    parser.add_class_arguments(Federation, "trainer", fail_untyped=False, sub_configs=True)
    parser.add_subclass_arguments(FederatedModule, "model", required=True, fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, fail_untyped=False)
    link_method_options(parser)
    parser.link_arguments(SEED, "trainer.seed")
    config = _parsed(parser, content)
    L.seed_everything(config[SEED], workers=True, verbose=False)
    with unwrapped_errors():
        made = parser.instantiate(config)
    text = parser.dump(config, skip_unset=False)
    return Parts(made["model"], made["data"], made["trainer"], text, yaml.safe_load(text))


def _parsed(parser: ArgumentParser, content: Mapping[str, Any]) -> Namespace:
    import_plugins()
    try:
        return parser.parse_object(dict(content))
    except ArgumentError as error:
        raise UserError(f"The config can't be used: {' '.join(str(error).split())}") from error
