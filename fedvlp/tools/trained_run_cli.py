"""Loading of trained runs for commands: the parser of their options, their tensors and images."""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import ALLOW_HELP, trained_file
from fedvlp.core.state import State
from fedvlp.data.without_images import PlaceholderData
from fedvlp.runs.descriptions import check_single_images, load_trained
from fedvlp.runs.run_folder import describe_choice
from fedvlp.tools.trained_run import TrainedRun
from fedvlp.training.setup import set_up_data, set_up_method


class TrainedRunCLI(FederationCLI):
    """Parser that creates a method and, if needed, its run's data, without training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the trained file, and ``--allow`` for files that name classes outside fedvlp."""
        super().add_arguments_to_parser(parser)
        help = "RUN: a run's folder, its prompts.safetensors or one of its checkpoints."
        parser.add_argument("--ckpt_path", type=str | None, help=help)
        parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)

    def before_instantiate_classes(self) -> None:
        """Remove loggers and callbacks, which only record training."""
        self.config.trainer.logger = None
        self.config.trainer.callbacks = None
        self.config.trainer.runtime.default_callbacks = False


def load_run(command: TrainedRunCLI, serves_images: bool = True) -> TrainedRun:
    """Move a command's method to its device, load its trained file, and set up its images, or raise a UserError."""
    module = command.model
    check_single_images(module)
    data = command.datamodule
    federation = command.trainer
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
    if isinstance(data, PlaceholderData):
        return TrainedRun(module, deployed, personal, file=file)
    set_up_data(federation.fabric, module, data, federation.options.precision, serves_images)
    return TrainedRun(module, deployed, personal, data, file)
