"""Small runs of a method on synthetic images, created like the command line's runs; checks share one reference run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from fedvlp.callbacks import Plots
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.state import ClientUpdate, ServerState, State
from fedvlp.testing.contract import run_tensors
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.communication import Cost, communication_cost
from fedvlp.training.task import PhaseTask
from fedvlp.utils.config_files import configs_folder

DOMAINS = ["ink", "paint", "photo"]
CLASSES = ["circle", "square", "star"]


def draw(domain: int, label: int, index: int) -> Image.Image:
    """Draw a bright bar; its position shows the class and its colour the domain."""
    pixels = np.random.default_rng([domain, label, index]).integers(0, 60, (32, 32, 3), dtype=np.uint8)
    pixels[8 * label + 2 : 8 * label + 8, 4:28, domain] = 250
    return Image.fromarray(pixels)


def write_images(root: Path) -> Path:
    """Write folders with 4, 6 and 8 images per class for the three domains, and return their root."""
    for domain, domain_name in enumerate(DOMAINS):
        for label, class_name in enumerate(CLASSES):
            folder = root / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(4 + 2 * domain):
                draw(domain, label, index).save(folder / f"{index}.png")
    return root


def small_run(image_root: Path | None, folder: Path, method: Sequence[str], *arguments: str) -> FederationCLI:
    """Create module, data and federation of a run on the tiny CLIP, not yet trained.

    Args:
        image_root: Folder of images; None for scenes with several labels.
        folder: Folder for the cache and the run folder.
        method: Arguments that choose the method.
        arguments: More arguments of the command line, which override the defaults of this function.
    """
    data = ["--data=IconScenes", "--data.num_classes=6", "--data.held_out=pixel"]
    if image_root is not None:
        data = [f"--config={configs_folder() / 'data' / 'folders'}.yaml", f"--data.root={image_root}"]
        data.append("--data.held_out=photo")
    defaults = [
        *method,
        *data,
        "--data.batch_size=4",
        f"--data.cache_dir={folder / 'cache'}",
        "--model.clip.name=fedvlp-tiny",
        "--trainer.rounds=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder / 'runs'}",
    ]
    # The last of equal options wins, so checks can override them.
    return FederationCLI.make([*defaults, *arguments])


def fit(run: FederationCLI, **options: Any) -> dict[str, Tensor]:
    """Train a run, and return the tensors of its final state."""
    federation = run.trainer
    # Plots are the same for all methods and take longer than a round.
    federation.callbacks[:] = [callback for callback in federation.callbacks if not isinstance(callback, Plots)]
    federation.fit(run.model, run.datamodule, **options)
    return run_tensors(federation.run_state)


class UploadRecorder(FederationCallback):
    """Callback that records the uploads by round, client and phase."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, int, str], State] = {}

    def on_phase_end(
        self, federation: RunView, task: PhaseTask, server: ServerState, updates: Sequence[ClientUpdate]
    ) -> None:
        """Record the uploads of a phase."""
        for update in updates:
            self.states[task.round, update.client.id, task.phase.name] = update.state


@dataclass(frozen=True)
class ReferenceRun:
    """An uninterrupted run of all clients that checks inspect and compare with other runs.

    Attributes:
        build: Function that creates another run of the method from more arguments of the command line, not yet trained;
            runs share the cache.
        run: Module, data and federation, after training.
        before: The method's tensors before training.
        fingerprint: CLIP's fingerprint before training.
        cost: The communication computed before training.
        tensors: The tensors of the run's final state.
        uploads: The uploads by round, client and phase.
        folder: The run folder.
    """

    build: Callable[..., FederationCLI]
    run: FederationCLI
    before: dict[str, Tensor]
    fingerprint: str
    cost: Cost
    tensors: dict[str, Tensor]
    uploads: dict[tuple[int, int, str], State]
    folder: Path


def train_reference(build: Callable[..., FederationCLI]) -> ReferenceRun:
    """Train a method for two rounds; for ``build`` see :class:`ReferenceRun`."""
    run = build("--trainer.name=whole")
    recorder = UploadRecorder()
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    fingerprint = run.model.clip.fingerprint()
    cost = communication_cost(run.model, run.datamodule.clients)
    run.trainer.add_callback(recorder)
    tensors = fit(run)
    folder = Path(run.trainer.log_dir)
    return ReferenceRun(build, run, before, fingerprint, cost, tensors, recorder.states, folder)
