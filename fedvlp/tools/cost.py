"""The command ``fedvlp cost``: what methods send, for some classes, domains and clients, without images or weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.clip import CLIPSpec
from fedvlp.clip.loading import shapes_only
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.data import FederatedDataModule
from fedvlp.data.without_images import PlaceholderData
from fedvlp.training.communication import communication_cost
from fedvlp.utils.config_files import CONFIG_OPTION, names_a_method, with_config_paths
from fedvlp.utils.errors import unwrapped_errors
from fedvlp.utils.text_table import frame_markdown, frame_table

CostFormat = Literal["table", "markdown", "csv", "json"]
COST_TITLES = {
    "method": "method",
    "config": "config",
    "phase": "phase",
    "upload_parameters": "up",
    "upload_bytes": "up bytes",
    "download_parameters": "down",
    "download_bytes": "down bytes",
    "once_parameters": "once",
    "once_bytes": "once bytes",
    "clients": "clients",
    "rounds": "rounds",
    "total_parameters": "total",
    "total_bytes": "total bytes",
}
COST_CAPTION = (
    "up, down: parameters and bytes that one client sends and receives in one round, the largest where they differ",
    "once: what the server sends to each client before the first round only",
    "total: of the clients of each round and of all rounds, both ways, with what is sent once",
)
PARSER = {"prog": "fedvlp cost", "description": "Print what methods send, without training."}


class CostCLI(FederationCLI):
    """Makes a method whose CLIP has zeros as weights, and a data set of which no image is opened; no federation."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the form of the table, and an outline in place of a data set that must be given."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--format", type=CostFormat, default="table", help="How to print the table.")
        parser.add_argument("--ckpt_path", help="Not used; the config of a run has it.")
        parser.set_defaults({"data": {"class_path": f"{PlaceholderData.__module__}.{PlaceholderData.__name__}"}})

    def before_instantiate_classes(self) -> None:
        """Leaves out what counting does not need: weights, images, loggers."""
        self.parser.add_instantiator(_without_verifying, FederatedDataModule, subclasses=True, prepend=True)
        config = self.config
        # A logger would open its file, and a callback may need a package that is not installed.
        config.trainer.logger = None
        config.trainer.callbacks = None
        options = config.model.get("init_args")
        if options is not None and "clip" in options:
            # Shapes are all that is counted, so no file of weights is looked for.
            name = options.clip if isinstance(options.clip, str) else options.clip.name
            options.clip = Namespace(vars(CLIPSpec(name, "random")))

    def instantiate_classes(self) -> None:
        """Makes method and data; shapes are all that is counted."""
        with shapes_only():
            super().instantiate_classes()

    def instantiate_trainer(self, **options: Any) -> Any:
        """Returns the options of the federation, which need no device."""
        # A federation would look for GPUs and start its processes.
        return self.config_init.trainer


def run_cost(arguments: Sequence[str]) -> int:
    """Writes the table of one method, or of several where several configs name one; returns the exit code."""
    with unwrapped_errors():
        rows, form = costs(arguments)
    sys.stdout.write(format_costs(rows, form) + "\n")
    return 0


def costs(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], CostFormat]:
    """Returns what ``fedvlp cost`` prints with these arguments, and in which form."""
    rows: list[dict[str, Any]] = []
    form: CostFormat = "table"
    for config, of_method in _arguments_by_config(with_config_paths(arguments)).items():
        command = CostCLI(run=False, args=of_method, save_config_callback=None, parser_kwargs=PARSER)
        rows += _rows(command.model, command.datamodule, command.trainer, Path(config).stem)
        form = command.config.format
    return rows, form


def format_costs(rows: Sequence[Mapping[str, Any]], form: CostFormat) -> str:
    """Returns what methods send: rows with the keys of ``COST_TITLES``; JSON has their other keys as well.

    Methods of one phase have one row; the others have one a phase and one for all of them.

    >>> row = {name: 0 for name in COST_TITLES} | {"method": "A", "config": "", "phase": "all", "upload_bytes": 4000}
    >>> print(format_costs([row], "csv").splitlines()[1])
    A,,all,0,4000,0,0,0,0,0,0,0,0
    """
    if form == "json":
        return json.dumps(list(rows), indent=2, ensure_ascii=False)
    frame = pd.DataFrame(list(rows), columns=list(COST_TITLES))
    if form == "csv":
        return str(frame.to_csv(index=False)).rstrip("\n")
    cells = frame.map(lambda value: value if isinstance(value, str) else f"{value:,}").rename(columns=COST_TITLES)
    if form == "markdown":
        return frame_markdown(cells, text_columns=3)
    shared = {row["method"]: row.get("image_statistics", ()) for row in rows}
    notes = [
        f"of images: {method} sends {', '.join(names)}, computed from images, to all clients"
        for method, names in shared.items()
        if names
    ]
    return "\n".join([frame_table(cells, text_columns=3), "", *COST_CAPTION, *notes])


def _rows(model: Any, data: Any, trainer: Any, config: str) -> list[dict[str, Any]]:
    """Returns the rows of one method, with all that they depend on."""
    cost = communication_cost(model, data.clients, trainer.local.every_add_on)
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
    # The row of all phases together is the last; with one phase it says what the first says.
    return rows if len(cost.phases) > 1 else rows[-1:]


def _arguments_by_config(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Returns the arguments of each method by the path of its config; all other configs and options are for all."""
    configs = [argument for argument in dict.fromkeys(arguments) if argument.startswith(CONFIG_OPTION)]
    methods = [config for config in configs if names_a_method(config.removeprefix(CONFIG_OPTION))]
    if not methods:
        return {"": list(arguments)}
    by_config = {}
    for method in methods:
        others = {*methods} - {method}
        of_method = [argument for argument in arguments if argument not in others]
        by_config[method.removeprefix(CONFIG_OPTION)] = of_method
    return by_config


def _without_verifying(
    kind: Callable[..., FederatedDataModule], *arguments: Any, **options: Any
) -> FederatedDataModule:
    """Returns a data set, split and partitioned as for training, but without a look into its images."""
    data = kind(*arguments, **options)
    data.verifies_images = False
    return data
