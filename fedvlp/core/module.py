"""Base class of every method: a LightningModule that says what it trains, what it sends and what it keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.core.diagnosis import Diagnosis
from fedvlp.core.protocols import Backbone, Batch, Inputs
from fedvlp.core.state import Client, State, detached, matches_prefix, select
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.utils.digests import code_digest, digest, plain
from fedvlp.utils.errors import UserError
from fedvlp.version import __version__


@dataclass(frozen=True)
class Phase:
    """One train-and-communicate stage of a round; a round is a list of phases.

    Attributes:
        name: what the paper calls the stage.
        train: names (or prefixes) of the parameters that get gradients.
        upload: names (or prefixes) of the tensors sent to the server afterwards.
        strategy: what the server sends and what it does with the uploads.
    """

    name: str
    train: tuple[str, ...]
    upload: tuple[str, ...]
    strategy: Strategy


@dataclass(frozen=True)
class RoundContext:
    """Where training stands; read-only for methods.

    Attributes:
        round: number of finished rounds, from 0.
        phase: the phase that is running.
        client: whose data are trained on.
    """

    round: int
    phase: Phase
    client: Client


class FederatedModule(L.LightningModule):
    """A method: prompts, routers and losses around one frozen CLIP. Needs only ``forward`` and ``training_step``.

    It is an ordinary LightningModule, so ``lightning.Trainer`` trains it centrally. ``Federation`` trains it on many
    clients: it swaps their states in and out of this one module.

    Args:
        optimizer: makes the optimizer of one client's local training from its trainable parameters.

    Attributes:
        personal: names (or prefixes) of the tensors that stay on the client between rounds.
        train_only_personal: those that stay there too, but for training alone: the deployed model does without them.
        broadcast_once: names (or prefixes) of constants that the server sends once, before the first round.
        prepare_options: the hyperparameters that :meth:`prepare` depends on; None means all of them.
        prepare_definition: the function that :meth:`prepare` comes to, where several methods have the same.
        context: where the federation stands; None outside a federation.
        known_tensors: what :meth:`exchangeable_tensors` returns during a phase, in which none may be replaced.
    """

    personal: tuple[str, ...] = ()
    train_only_personal: tuple[str, ...] = ()
    broadcast_once: tuple[str, ...] = ()
    prepare_options: tuple[str, ...] | None = None
    prepare_definition: Callable[..., dict[str, Tensor]] | None = None
    strict_loading = False  # the frozen CLIP is not part of any checkpoint
    clip: Backbone

    def __init__(self, optimizer: OptimizerCallable | None = None) -> None:
        super().__init__()
        self.make_optimizer = optimizer
        self.context: RoundContext | None = None
        self._logged: dict[str, list[Tensor]] = {}
        self.known_tensors: dict[str, Tensor] | None = None

    def set_backbone(self, clip: Backbone) -> None:
        """Takes the frozen CLIP as ``self.clip`` and records in ``hparams`` which one it is."""
        self.clip = clip
        self.save_hyperparameters({"clip": asdict(clip.spec)})

    # ---- what a method says of itself

    def configure_phases(self) -> Sequence[Phase]:
        """Returns the phases of a round; by default one: train all, upload all but the personal, average."""
        names = tuple(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if not names:
            return ()
        shared = tuple(name for name in names if not matches_prefix(self.personal, name))
        return (Phase("train", train=names, upload=shared, strategy=FedAvg()),)

    def baseline(self) -> FederatedModule | None:
        """Returns an untrained method that results stand beside, such as zero-shot CLIP; None for none."""
        return None

    def diagnose(self, domains: Mapping[str, Iterable[Float[Tensor, "B 3 H V"]]]) -> Diagnosis | None:
        """Returns what there is to see inside the method on each domain's images, in batches; None for nothing."""
        return None

    def prepare(self, images: Float[Tensor, "B 3 H V"]) -> dict[str, Tensor]:
        """Returns what never changes for an image, each tensor [B, ...]: features, routing weights, teacher logits.

        It is computed once per image and kept. A method without such constants leaves this out and gets images.
        """
        return {"images": images}

    def constants(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the constants of a batch: as they came from the cache, or prepared from images now."""
        if isinstance(inputs, dict):
            return {name: value.float() for name, value in inputs.items()}
        with torch.no_grad():
            return self.prepare(inputs)

    def prepare_key(self) -> str:
        """Returns a digest of all that :meth:`prepare` depends on besides the image; equal keys share a cache."""
        definition = self.prepare_definition or type(self).prepare
        code = code_digest(definition, ("fedvlp.clip", "fedvlp.methods", "fedvlp.ops"))
        return digest([code, __version__, self.clip.fingerprint(), self.describe(self.prepare_options)])

    @property
    def prepares(self) -> bool:
        """Whether this method has constants worth keeping."""
        return type(self).prepare is not FederatedModule.prepare

    @property
    def transform(self) -> Callable[[Any], Tensor]:
        """The transform from a PIL image to the model's input, [3, height, width]."""
        return self.clip.preprocess

    @property
    def train_transform(self) -> Callable[[Any], Tensor]:
        """The transform with augmentation, used where a data module asks for it."""
        return self.clip.train_preprocess

    def describe(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Returns the hyperparameters (all, or those named) as plain values that JSON can hold."""
        own = inspect.signature(type(self)).parameters.keys() - {"optimizer"}  # not what the command line adds
        chosen = [name for name in self.hparams if name in own] if names is None else names
        return {name: plain(self.hparams[name]) for name in sorted(chosen)}

    def shared_state(self) -> State:
        """Returns what the server starts from: every tensor that some phase uploads."""
        return detached(
            select(self.exchangeable_tensors(), [name for phase in self.configure_phases() for name in phase.upload])
        )

    def upload_state(self) -> State:
        """Returns what the client sends after the running phase."""
        if self.context is None:
            raise RuntimeError("upload_state() is for a running phase. Call start_client(context) first.")
        return detached(select(self.exchangeable_tensors(), self.context.phase.upload))

    def personal_state(self) -> State:
        """Returns what stays on the client."""
        kept = (*self.personal, *self.train_only_personal)
        return detached(select(self.exchangeable_tensors(), kept)) if kept else {}

    def initial_personal_state(self, start: State) -> State:
        """Returns what a client keeps before its first round, with random draws of its own if the method wants them.

        Args:
            start: what stayed on the module at the beginning; the default.
        """
        return start

    def load_state(self, state: State) -> None:
        """Copies tensors into the module.

        Raises:
            UserError: if a name is unknown or a shape differs.
        """
        own = self.exchangeable_tensors()
        if unknown := sorted(state.keys() - own.keys()):
            raise UserError(f"{type(self).__name__} has no tensors named {unknown}; it has {sorted(own)}.")
        for name, value in state.items():
            if own[name].shape != value.shape:
                raise UserError(
                    f"{type(self).__name__} expects {name!r} in shape {tuple(own[name].shape)}, got "
                    f"{tuple(value.shape)}. Use the prompt length, experts and CLIP that it was trained with."
                )
            own[name].detach().copy_(value)

    def exchangeable_tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by name, themselves and no copies; those of the frozen CLIP are not among them."""
        return self.known_tensors or self.state_dict(keep_vars=True)

    def trainable(self) -> list[Tensor]:
        """Returns the parameters that get gradients now."""
        return [
            value
            for value in self.exchangeable_tensors().values()
            if value.requires_grad and isinstance(value, nn.Parameter)
        ]

    def start_client(self, context: RoundContext) -> None:
        """Prepares for one client's local training: only the phase's tensors get gradients."""
        self.context = context
        self._logged.clear()
        for name, tensor in self.exchangeable_tensors().items():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(matches_prefix(context.phase.train, name))

    def logged_means(self) -> dict[str, float]:
        """Returns the mean over the client's local steps of all that was logged."""
        return {name: torch.stack(values).float().mean().item() for name, values in self._logged.items()}

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Returns a fresh optimizer over the tensors that are trainable now; None if there are none."""
        if not (trainable := self.trainable()):
            return None
        if self.make_optimizer is None:
            raise UserError(f"{type(self).__name__} trains parameters but has no optimizer. Pass optimizer=...")
        return self.make_optimizer(trainable)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Logs as in Lightning; in a federation the values are averaged over the client's local steps."""
        if self.context is not None:
            self._logged.setdefault(name, []).append(torch.as_tensor(value).detach())
        elif self._trainer is not None:
            super().log(name, value, *args, **kwargs)

    def evaluation_step(self, batch: Batch, stage: str) -> Float[Tensor, ""]:
        """Returns and logs the accuracy of a batch, in [0, 1]."""
        inputs, labels = batch
        accuracy: Tensor = (self(inputs).argmax(-1) == labels).float().mean()
        self.log(f"{stage}_accuracy", accuracy, prog_bar=True, batch_size=len(labels))
        return accuracy

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Returns and logs ``val_accuracy``."""
        return self.evaluation_step(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Returns and logs ``test_accuracy``."""
        return self.evaluation_step(batch, "test")

    def predict_step(self, batch: Batch | Inputs, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, "B C"]:
        """Returns class probabilities; a batch may come with labels, which are ignored."""
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        probabilities: Tensor = self(inputs).softmax(-1)
        return probabilities
