"""Small runs of a method on made-up images, made as the command line makes them; checks share one that is whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from torch import Tensor

from fedvlp.callbacks import Plots
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.state import ClientUpdate, ServerState, State
from fedvlp.federation import Federation
from fedvlp.testing.contract import run_tensors
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import Cost, communication_cost
from fedvlp.training.task import PhaseTask
from fedvlp.utils.config_files import configs_folder

DOMAINS = ["ink", "paint", "photo"]
CLASSES = ["circle", "square", "star"]


def draw(domain: int, label: int, index: int) -> Image.Image:
    """Draw a bright bar whose place tells the class, in a colour that tells the domain."""
    pixels = np.random.default_rng([domain, label, index]).integers(0, 60, (32, 32, 3), dtype=np.uint8)
    pixels[8 * label + 2 : 8 * label + 8, 4:28, domain] = 250
    return Image.fromarray(pixels)


def write_images(root: Path) -> Path:
    """Write 4, 6 and 8 images of each class of the domains into folders, and returns their root."""
    for domain, domain_name in enumerate(DOMAINS):
        for label, class_name in enumerate(CLASSES):
            folder = root / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(4 + 2 * domain):
                draw(domain, label, index).save(folder / f"{index}.png")
    return root


def small_run(image_root: Path, folder: Path, method: Sequence[str], *arguments: str) -> FederationCLI:
    """Return module, data and federation of a run on the tiny CLIP, not yet trained.

    Args:
        image_root: The folder of images.
        folder: Gets the cache and the run folder.
        method: The arguments that choose the method.
        arguments: More arguments of the command line, which win over those given here.
    """
    defaults = [
        *method,
        f"--config={configs_folder() / 'data' / 'folders'}.yaml",
        f"--data.root={image_root}",
        "--data.held_out=photo",
        "--data.batch_size=4",
        f"--data.cache_dir={folder / 'cache'}",
        "--model.clip.name=fedvlp-tiny",
        "--trainer.rounds=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder / 'runs'}",
    ]
    # The last of equal options wins, so a check can give its own.
    return FederationCLI.make([*defaults, *arguments])


def federation_of(run: FederationCLI) -> Federation:
    """Return what trains a run."""
    return cast(Federation, run.trainer)


def fit(run: FederationCLI, **options: Any) -> dict[str, Tensor]:
    """Train a run, and returns the tensors of its state at the end."""
    federation = federation_of(run)
    # Figures of the run folder are the same for all methods and take longer than a round.
    federation.callbacks[:] = [each for each in federation.callbacks if not isinstance(each, Plots)]
    federation.fit(run.model, run.datamodule, **options)
    return run_tensors(federation.run_state)


class Sent(FederationCallback):
    """Keeps what each client uploads, by round, client and phase."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, int, str], State] = {}

    def on_phase_end(
        self, federation: RunView, task: PhaseTask, server: ServerState, updates: Sequence[ClientUpdate]
    ) -> None:
        """Keep the uploads of a phase."""
        for update in updates:
            self.states[task.round, update.client.id, task.phase.name] = update.state


@dataclass(frozen=True)
class WholeRun:
    """An unbroken run of all clients, which checks look at and compare others with.

    Attributes:
        build: from more arguments of the command line to another run of the method, not yet trained; runs share what
            is computed of images.
        run: module, data and federation, after training.
        before: the method's tensors before.
        fingerprint: of its CLIP before.
        cost: the communication that was computed before.
        tensors: of the run's state at its end.
        sent: what its clients uploaded, by round, client and phase.
        folder: its run folder.
    """

    build: Callable[..., FederationCLI]
    run: FederationCLI
    before: dict[str, Tensor]
    fingerprint: str
    cost: Cost
    tensors: dict[str, Tensor]
    sent: dict[tuple[int, int, str], State]
    folder: Path


def whole_run(build: Callable[..., FederationCLI]) -> WholeRun:
    """Train a method for two rounds; ``build`` is as of :class:`WholeRun`."""
    run = build("--trainer.name=whole")
    sent = Sent()
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    fingerprint = run.model.clip.fingerprint()
    cost = communication_cost(run.model, run.datamodule.clients)
    federation_of(run).add_callback(sent)
    tensors = fit(run)
    folder = Path(federation_of(run).log_dir)
    return WholeRun(build, run, before, fingerprint, cost, tensors, sent.states, folder)
