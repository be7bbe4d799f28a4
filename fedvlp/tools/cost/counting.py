"""Counting of communication costs, without images or weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.clip import CLIPSpec
from fedvlp.clip.loading import shapes_only
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.data import FederatedDataModule
from fedvlp.data.without_images import PlaceholderData
from fedvlp.training.communication import communication_cost
from fedvlp.utils.config_files import CONFIG_OPTION, find_config, names_a_method, sort_options


class CostCLI(FederationCLI):
    """LightningCLI that makes a method without CLIP's weights and a data set without opening images."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Use a placeholder as the default data set."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--ckpt_path", help="Unused; accepted because configs of runs contain it.")
        parser.set_defaults({"data": {"class_path": f"{PlaceholderData.__module__}.{PlaceholderData.__name__}"}})

    def before_instantiate_classes(self) -> None:
        """Disable weights, images, loggers and callbacks."""
        self.parser.add_instantiator(_skip_verification, FederatedDataModule, subclasses=True, prepend=True)
        config = self.config
        config.trainer.logger = None
        config.trainer.callbacks = None
        options = config.model.get("init_args")
        if options is not None and "clip" in options:
            name = options.clip if isinstance(options.clip, str) else options.clip.name
            options.clip = Namespace(vars(CLIPSpec(name, "random")))

    def instantiate_classes(self) -> None:
        """Make method and data, with shapes instead of weights."""
        with shapes_only():
            super().instantiate_classes()

    def instantiate_trainer(self, **options: Any) -> Any:
        """Return the options only, because a federation would search for GPUs and start processes."""
        return self.config_init.trainer


def costs(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Count the communication of each config's method: one row per phase, and one for all phases."""
    rows: list[dict[str, Any]] = []
    for config, method_arguments in _arguments_by_config(sort_options(arguments)).items():
        command = CostCLI.make(method_arguments, prog="fedvlp cost")
        rows += _rows(command.model, command.datamodule, command.trainer, Path(config).stem)
    return rows


def _rows(model: Any, data: Any, trainer: Any, config: str) -> list[dict[str, Any]]:
    cost = communication_cost(model, data.clients, trainer.local.all_add_ons)
    clients = len(data.clients)
    about = {
        "method": type(model).__name__,
        "config": config,
        "clip": model.clip.spec.name,
        "classes": len(data.class_names),
        "domains": len(data.source_domains),
        "all_clients": clients,
        "clients": min(trainer.clients.cohort_size or clients, clients),
        "rounds": trainer.rounds,
        "image_statistics": list(model.image_statistics),
    }
    rows = [about | row for row in cost.rows(trainer.rounds, trainer.clients.cohort_size)]
    # With a single phase, the row for all phases would repeat it.
    return rows if len(cost.phases) > 1 else rows[-1:]


def _arguments_by_config(arguments: Sequence[str]) -> dict[str, list[str]]:
    configs = [argument for argument in dict.fromkeys(arguments) if argument.startswith(CONFIG_OPTION)]
    methods = [config for config in configs if names_a_method(find_config(config.removeprefix(CONFIG_OPTION)))]
    if not methods:
        return {"": list(arguments)}
    by_config = {}
    for method in methods:
        others = {*methods} - {method}
        by_config[method.removeprefix(CONFIG_OPTION)] = [word for word in arguments if word not in others]
    return by_config


def _skip_verification(
    kind: Callable[..., FederatedDataModule], *arguments: Any, **options: Any
) -> FederatedDataModule:
    data = kind(*arguments, **options)
    data.verifies_images = False
    return data
