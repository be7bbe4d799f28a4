"""A method with its trained tensors, and the images of its run: what explain and audit begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import ALLOW_HELP, config_option, trained_file
from fedvlp.core.module import FederatedModule
from fedvlp.core.roles import SERVED
from fedvlp.core.state import Client, State
from fedvlp.data import FederatedDataModule
from fedvlp.data.loaders import ImageDataset
from fedvlp.data.without_images import PlaceholderData, PredictionData
from fedvlp.federation import Federation
from fedvlp.runs.descriptions import load_trained
from fedvlp.runs.run_folder import describe_choice, run_of
from fedvlp.training.setup import set_up_data, set_up_method
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class TrainedRun:
    """A method to look at.

    Attributes:
        module: The method in evaluation mode, with the deployed tensors.
        personal: Personal tensors by the client's id; empty if no file has them.
        data: The run's images, set up and bound to the method's transform; None without images.
        file: The trained tensors; None for an untrained method.
    """

    module: FederatedModule
    deployed: State
    personal: Mapping[int, State]
    data: FederatedDataModule | None = None
    file: Path | None = None

    def folder(self, output: str | None, name: str) -> Path:
        """The folder to write to: ``output`` if given, otherwise one next to the trained file."""
        return Path(output) if output else (Path() if self.file is None else run_of(self.file)) / name

    @property
    def name(self) -> str:
        """Name of the method."""
        return type(self.module).__name__

    @property
    def class_names(self) -> list[str]:
        """All classes."""
        return list(self.module.hparams["class_names"])

    @property
    def clip(self) -> Any:
        """The frozen CLIP."""
        return self.module.clip

    @property
    def device(self) -> torch.device:
        """The method's device."""
        device: torch.device = next(self.clip.parameters()).device
        return device


class TrainedRunCLI(FederationCLI):
    """Makes a method and, if needed, its run's data; nothing is trained."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the trained file, and ``--allow``, without which it names only fedvlp's classes."""
        super().add_arguments_to_parser(parser)
        help = "RUN: a run's folder, its prompts.safetensors or one of its checkpoints."
        parser.add_argument("--ckpt_path", type=str | None, help=help)
        parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)

    def before_instantiate_classes(self) -> None:
        """Leave out loggers and callbacks, which write about runs."""
        self.config.trainer.logger = None
        self.config.trainer.callbacks = None
        self.config.trainer.runtime.default_callbacks = False


Command = TypeVar("Command", bound=TrainedRunCLI)


def parse(kind: type[Command], words: Sequence[str], trained: Mapping[str, Any] | None, description: str) -> Command:
    """Make the method and the data of a command line after the command, whose name begins the class's name.

    ``trained`` is the config of the trained file, which the command line overrides; None without a file.
    """
    arguments = [*words] if trained is None else [config_option(trained), *words]
    return kind.make(arguments, prog=f"fedvlp {kind.__name__.removesuffix('CLI').lower()}", description=description)


def load_run(command: TrainedRunCLI) -> TrainedRun:
    """Bring a command's method to its device, load its trained file, and set up its images, or raise UserError."""
    module = command.model
    data = command.datamodule
    federation = cast(Federation, command.trainer)
    set_up_method(federation.fabric, module, federation.runtime.num_threads)
    deployed: State = module.shared_state()
    personal: Mapping[int, State] = {}
    file = None
    if command.config.ckpt_path is not None:
        file = trained_file(command.config.ckpt_path, command.parser.prog.removeprefix("fedvlp "))
        federation.fabric.print(describe_choice(Path(command.config.ckpt_path)), end="", flush=True)
        deployed, personal = load_trained(file, module)
    module.load_state(deployed)
    module.eval()
    # Data sets without images.
    if isinstance(data, (PredictionData, PlaceholderData)):
        return TrainedRun(module, deployed, personal, file=file)
    set_up_data(federation.fabric, module, data, federation.options.precision, serves_images=True)
    return TrainedRun(module, deployed, personal, data, file)


@dataclass(frozen=True)
class RunImage:
    """One image of a run, not yet read, with its position in the dataset that reads it."""

    domain: str
    name: str
    dataset: ImageDataset
    position: int

    @property
    def label(self) -> int:
        """Its class."""
        return int(self.dataset.labels[self.position])


def read_pixels(images: Sequence[RunImage]) -> Float[Tensor, "B 3 V V"]:
    """Read images and apply the method's transform."""
    return torch.stack([image.dataset[image.position][0] for image in images])


def training_images(data: FederatedDataModule) -> dict[Client, list[RunImage]]:
    """List each client's training images, by domain; raise UserError if the images of all clients are pooled."""
    if any(client.is_pool for client in data.clients):
        raise UserError("This run is centralised: nothing was sent that could be audited. Take a federated one.")
    dataset: Any = data.train_dataloader().dataset  # type: ignore[union-attr]
    clients = {client.id: client for client in data.clients}
    images: dict[Client, list[RunImage]] = {client: [] for client in data.clients}
    # One dataset holds the training images of all clients, in the order of the table.
    position = 0
    for entry in data.split_table():
        if entry["role"] == "train":
            for name in entry["images"]:
                images[clients[entry["client"]]].append(RunImage(entry["domain"], name, dataset, position))
                position += 1
    return images


def evaluation_images(data: FederatedDataModule, role: str) -> dict[str, list[RunImage]]:
    """List the images of ``validation``, ``test`` or ``held_out`` by domain, in the order of the table."""
    # Validation images have loaders of their own; test and held-out images are served together.
    served = ("validation",) if role == "validation" else SERVED
    loaders = data.val_dataloader() if role == "validation" else data.test_dataloader()
    entries = [entry for entry in data.split_table() if entry["role"] in served]
    images: dict[str, list[RunImage]] = {}
    for entry, loader in zip(entries, loaders, strict=True):
        if entry["role"] == role:
            dataset: Any = loader.dataset
            of_split = [RunImage(entry["domain"], name, dataset, i) for i, name in enumerate(entry["images"])]
            images.setdefault(entry["domain"], []).extend(of_split)
    return images
