"""The command ``fedvlp diagnose``: what a method measures of its own workings on the images of every domain."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from lightning import Fabric
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import ALLOW_HELP, config_of_command, config_option, trained_file
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import EvaluationSplit, FederatedData
from fedvlp.core.roles import OF_CLIENTS
from fedvlp.federation import Federation
from fedvlp.methods import TRIP
from fedvlp.runs.run_folder import load_trained, run_of
from fedvlp.tools.explain.routes import MEANING, Value, route_measurements
from fedvlp.training.setup import set_up_data, set_up_method
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.files import write_json

CKPT_HELP = "A run's folder, its prompts.safetensors or one of its checkpoints; an untrained method if not given."
OUTPUT_HELP = "JSON file, or a folder for it; the run's folder if not given, and no file without a run."
PARSER = {"prog": "fedvlp diagnose", "description": "Look inside a method on the images of every domain."}


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of how a method works inside, which no accuracy shows.

    Attributes:
        name: what was measured; the file has this name.
        meaning: from each measurement to a description of it.
        rows: from each column to its value, one row a domain, or several.
    """

    name: str
    meaning: Mapping[str, str]
    rows: Sequence[Mapping[str, Value]]

    def table(self) -> str:
        """Returns the rows in columns of equal width, and below them what the columns mean.

        >>> print(Diagnosis("routing", {"kept": "share of tokens"}, [{"domain": "photo", "kept": 0.5}]).table())
        domain   kept
        photo   0.500
        <BLANKLINE>
        kept: share of tokens
        """
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        cells = [columns]
        for row in self.rows:
            cells.append([_cell(row.get(column)) for column in columns])
        widths = [max(map(len, cells_of_column)) for cells_of_column in zip(*cells, strict=True)]
        lines = []
        for first, *others in cells:
            aligned = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
            lines.append("  ".join(aligned).rstrip())
        meanings = [f"{column}: {description}" for column, description in self.meaning.items()]
        return "\n".join([*lines, "", *meanings])

    def write(self, path: Path) -> Path:
        """Writes all of it as JSON, in one step that can't be seen half done; a folder gets ``<name>.json``."""
        file = path / f"{self.name}.json" if path.is_dir() or not path.suffix else path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"name": self.name, "meaning": dict(self.meaning), "rows": [dict(row) for row in self.rows]})
        return file


class DiagnoseCLI(FederationCLI):
    """Makes a method and its data; nothing is trained."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what this command takes."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--ckpt_path", type=str | None, help=CKPT_HELP)
        parser.add_argument("--output", type=str | None, help=OUTPUT_HELP)
        parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)

    def before_instantiate_classes(self) -> None:
        """Leaves out what writes about runs."""
        self.config.trainer.logger = None
        self.config.trainer.callbacks = None
        self.config.trainer.runtime.default_callbacks = False


def run_diagnose(arguments: Sequence[str]) -> int:
    """Prints the diagnosis of a method, writes it beside the trained file or to ``--output``; returns the exit code.

    Raises:
        UserError: if the method has no diagnosis, or there is no such trained file.
    """
    words = with_config_paths(arguments)
    trained = config_of_command("diagnose", arguments)
    if trained is not None:
        words.insert(0, config_option(trained))  # first, so that what the user passes overrides it
    with unwrapped_errors():
        command = DiagnoseCLI(run=False, args=words, save_config_callback=None, parser_kwargs=PARSER)
    ckpt_path, output = command.config.ckpt_path, command.config.output
    module = command.model
    federation = cast(Federation, command.trainer)
    set_up_method(federation.fabric, module, federation.runtime.num_threads)
    if ckpt_path is not None:
        file = trained_file(ckpt_path, "diagnose")
        module.load_state(load_trained(file, module)[0])
        output = output or run_of(file)
    set_up_data(federation.fabric, module, command.datamodule, federation.precision, serves_images=True)
    diagnosis = diagnose(module, command.datamodule, federation.fabric)
    sys.stdout.write(f"{diagnosis.table()}\n")
    if output is not None:
        sys.stdout.write(f"written to {diagnosis.write(Path(output))}\n")
    return 0


@torch.no_grad()
def diagnose(module: FederatedModule, data: FederatedData, fabric: Fabric) -> Diagnosis:
    """Returns what a method measures on the evaluation images of every domain; data must serve images.

    Raises:
        UserError: if there is nothing to measure inside the method.
    """
    if not isinstance(module, TRIP):
        raise UserError(f"{type(module).__name__} has no diagnosis; TRIP has one, of its routes.")
    module.eval()
    splits = [split for split in data.evaluation_splits() if split.role not in OF_CLIENTS]
    domains = dict.fromkeys(split.domain for split in splits)
    with fabric.autocast():
        rows = route_measurements(module, {domain: _images(splits, domain, fabric) for domain in domains})
    return Diagnosis("routing", MEANING, rows)


def _images(splits: Sequence[EvaluationSplit], domain: str, fabric: Fabric) -> Iterator[Tensor]:
    """Yields a domain's images in batches, from all of its evaluation splits."""
    for split in splits:
        if split.domain == domain:
            for images, _ in split.loader:
                yield cast(Tensor, fabric.to_device(images))


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(f"{item:.2f}" if item is not None else "-" for item in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
