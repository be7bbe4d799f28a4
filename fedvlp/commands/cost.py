"""The command ``fedvlp cost``: what methods send, for some classes, domains and clients, without images or weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.clip import CLIPSpec
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.data import FederatedDataModule
from fedvlp.data.placeholder import Outline
from fedvlp.report.cost_table import CostFormat, format_costs
from fedvlp.training.communication import communication_cost

CONFIG = "--config="


class CostCLI(FederationCLI):
    """Makes a method with random weights, and a data set of which no image is opened; no federation."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the form of the table, and an outline in place of a data set that must be given."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--format", type=CostFormat, default="table", help="How to print the table.")
        parser.add_argument("--ckpt_path", help="Not used; it stands in the config of a run.")
        parser.set_defaults({"data": {"class_path": f"{Outline.__module__}.{Outline.__name__}"}})

    def before_instantiate_classes(self) -> None:
        """Leaves out what counting does not need: weights, images, loggers."""
        self.parser.add_instantiator(unopened, FederatedDataModule, subclasses=True, prepend=True)
        config = self.config
        config.trainer.logger = config.trainer.callbacks = None
        options = config.model.get("init_args")
        if options is not None and "clip" in options:
            options.clip = _random(options.clip)

    def instantiate_trainer(self, **options: Any) -> Any:
        """Returns the options of the federation, which need no device."""
        return self.config.trainer


def print_costs(arguments: Sequence[str]) -> None:
    """Writes the table of one method, or of several where several configs name one."""
    rows, form = costs(arguments)
    sys.stdout.write(format_costs(rows, form) + "\n")


def costs(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], CostFormat]:
    """Returns what ``fedvlp cost`` prints with these arguments, and in which form."""
    rows: list[dict[str, Any]] = []
    form: CostFormat = "table"
    for given, config in one_for_each_method(arguments):
        about = {"prog": "fedvlp cost", "description": "Print what methods send, without training."}
        command = CostCLI(run=False, args=given, save_config_callback=None, parser_kwargs=about)
        rows += _rows(command.model, command.datamodule, command.trainer, Path(config).stem)
        form = command.config.format
    return rows, form


def _rows(model: Any, data: Any, trainer: Any, config: str) -> list[dict[str, Any]]:
    """Returns the rows of one method, with all that they depend on."""
    cost, clients = communication_cost(model, data.clients), len(data.clients)
    about = {
        "method": type(model).__name__,
        "config": config,
        "clip": model.clip.spec.name,
        "classes": len(data.class_names),
        "domains": len(data.source_domains),
        "all_clients": clients,
        "clients": min(trainer.cohort_size or clients, clients),
        "rounds": trainer.rounds,
    }
    rows = [about | row for row in cost.rows(trainer.rounds, trainer.cohort_size)]
    return rows if len(cost.phases) > 1 else rows[-1:]


def one_for_each_method(arguments: Sequence[str]) -> list[tuple[list[str], str]]:
    """Returns the arguments of each method with the name of its config; all other configs and options are for all."""
    given = _joined(arguments)
    paths = [option.removeprefix(CONFIG) for option in given if option.startswith(CONFIG)]
    methods = [path for path in dict.fromkeys(paths) if _names_a_method(path)]
    if not methods:
        return [(given, "")]
    return [
        ([option for option in given if option.removeprefix(CONFIG) not in methods or option == CONFIG + path], path)
        for path in methods
    ]


def _joined(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with every config in the form ``--config=path``."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--config", "-c"):
            joined[-1] = CONFIG + argument
        else:
            joined.append(argument)
    return joined


def unopened(kind: Callable[..., FederatedDataModule], *arguments: Any, **options: Any) -> FederatedDataModule:
    """Returns a data set, split and dealt out as for training, but without a look into its images."""
    data: Any = kind(*arguments, **options)
    data.verified_domains = lambda: data.load_domains()[0]
    return cast(FederatedDataModule, data)


def _random(clip: Any) -> Any:
    """Returns a CLIP's config with random weights, as only shapes are counted."""
    name = clip if isinstance(clip, str) else clip.name
    return Namespace(vars(CLIPSpec(name, "random")))


def _names_a_method(path: str) -> bool:
    """Whether a config says which method to use."""
    config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    model = config.get("model") if isinstance(config, dict) else None
    return isinstance(model, str) or (isinstance(model, dict) and "class_path" in model)
