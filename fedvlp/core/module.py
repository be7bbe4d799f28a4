"""Base class of every method: a LightningModule that says what it trains, what it sends and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import lightning as L
import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import DOMAIN, Backbone, Batch, Inputs
from fedvlp.core.state import State, detached, matches_prefix, select
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.utils.digests import constructor_arguments, digest, to_jsonable
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators
from fedvlp.version import __version__

HeldOutEvaluation = Literal["each", "mean", "shared"]
ADVICE = (
    "Use a method whose prompts or networks are the same for any classes, such as PromptFL or TRIP, or a protocol that "
    "measures no other classes"
)


class FederatedModule(L.LightningModule):
    """A method: prompts, routers and losses around one frozen CLIP. Needs only ``forward``.

    Its loss is the cross-entropy unless it has a ``training_step`` of its own. ``lightning.Trainer`` can train it
    centrally. ``Federation`` trains it on many clients: it swaps their states in and out of this one module.

    Args:
        optimizer: makes the optimizer of one client's local training from its trainable parameters.

    Attributes:
        personal: names (or prefixes) of the tensors that stay on the client between rounds.
        held_out_evaluation: how a method with ``personal`` tensors is measured on a domain that no client has: by the
            mean accuracy with those of ``each`` client in turn; by the ``mean`` of the probabilities with those of all
            clients; or without any, by the ``shared`` part alone.
        uses_personal: whether ``forward`` may use the personal tensors; false where the shared part is on its own.
        train_only_personal: names of further personal tensors, which only training needs.
        strategy: how the server combines uploads, unless ``configure_phases`` is overridden.
        broadcast_once: names (or prefixes) of constants that the server sends once, before the first round.
        image_statistics: names (or prefixes) of uploads that are computed from images and not learned.
        needs_images: whether batches hold images, since training changes the image tower; otherwise they hold the joint
            image features of the frozen CLIP, which are computed once.
        is_of_own_classes: Whether evaluation skips images of classes other than the module's own.
        precompute_options: The constructor options that ``precompute`` depends on, which are part of the cache's key;
            None for all options. Only methods that override ``precompute`` need it.
        precompute_version: Increase it whenever ``precompute`` changes, so that no cached value is reused.
        needs_domains: whether training inputs are a dict with each image's source domain, ``domain`` [B], from 0.
        context: where the federation is; None outside a federation.
    """

    personal: tuple[str, ...] = ()
    held_out_evaluation: HeldOutEvaluation = "each"
    uses_personal: bool = True
    train_only_personal: tuple[str, ...] = ()
    strategy: Strategy = FedAvg()
    broadcast_once: tuple[str, ...] = ()
    image_statistics: tuple[str, ...] = ()
    needs_images: bool = False
    is_of_own_classes: bool = False
    needs_domains: bool = False
    precompute_options: tuple[str, ...] | None = None
    precompute_version: int = 1
    strict_loading = False  # the frozen CLIP is not part of any checkpoint
    clip: Backbone

    def __init__(self, optimizer: OptimizerCallable | None = None) -> None:
        super().__init__()
        # Lightning collects the arguments of all constructors on the way here; CLIP and optimizer are described apart.
        self.save_hyperparameters(ignore=["clip", "optimizer"])
        self.make_optimizer = optimizer
        self.context: RoundContext | None = None
        self._logged: dict[str, list[Tensor]] = {}  # by name, one value a local step
        self._frozen_tensors: dict[str, Tensor] | None = None
        # Made once for each list of classes, since to make one encodes all class names.
        self._of_other_classes: dict[tuple[str, ...], FederatedModule] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the default optimizer, a lambda in the constructor's signature, which no pickle can hold."""
        state: dict[str, Any] = {**super().__getstate__(), "_of_other_classes": {}}
        if self.make_optimizer is self._default_optimizer():
            del state["make_optimizer"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore: Any = super().__setstate__
        restore({"make_optimizer": self._default_optimizer(), **state})

    def _default_optimizer(self) -> OptimizerCallable | None:
        parameter = constructor_arguments(type(self)).get("optimizer")
        return None if parameter is None else parameter.default

    def set_backbone(self, clip: Backbone) -> None:
        """Take the frozen CLIP as ``self.clip`` and record in ``hparams`` which one it is."""
        self.clip = clip
        self.save_hyperparameters({"clip": asdict(clip.spec)})

    def configure_phases(self) -> Sequence[Phase]:
        """The phases of a round; by default one: train all, upload all but the personal, average."""
        names = tuple(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if not names:
            return ()
        shared = tuple(name for name in names if not matches_prefix(self.personal, name))
        return (Phase("train", train=names, upload=shared, strategy=self.strategy),)

    def for_classes(self, class_names: Sequence[str]) -> FederatedModule:
        """Make a copy of the method for other classes; raise UserError if it can tell only its own."""
        names = tuple(class_names)
        if names not in self._of_other_classes:
            self._of_other_classes[names] = with_classes(self, names)
        method = self._of_other_classes[names].to(self.device)
        method.load_state(self.communicable_state())
        return method.train(self.training)

    def baseline(self) -> FederatedModule | None:
        """An untrained method that results stand beside, such as zero-shot CLIP; None for none."""
        return None

    def class_means_baseline(self, batches: Iterable[Batch]) -> FederatedModule | None:
        """Make a baseline that classifies by the class means of training images; None unless batches hold features."""
        return None

    def precompute(self, images: Float[Tensor, "B 3 V V"]) -> dict[str, Tensor]:
        """Compute the per-image constants, which are cached. Each tensor has shape [B, ...].

        By default this is the joint image feature f(x), ``features`` [B, d]. A method may add other constants, such as
        routing weights. They must depend neither on trained tensors nor on the class names. A method that
        ``needs_images`` gets ``images``, which are not cached.
        """
        if self.needs_images:
            return {"images": images}
        return {"features": self.clip.encode_image(images)}

    @property
    def precomputes(self) -> bool:
        """Whether there are constants worth keeping; else batches hold images."""
        return not self.needs_images or type(self).precompute is not FederatedModule.precompute

    def precompute_key(self) -> str:
        """Digest everything :meth:`precompute` depends on besides the image. Methods with equal keys share a cache."""
        if type(self).precompute is FederatedModule.precompute:
            owner, options = FederatedModule, {}
        else:
            owner, options = type(self), self.describe()
            if self.precompute_options is not None:
                options = {name: options[name] for name in self.precompute_options}
        function = [owner.__module__, owner.__qualname__, self.precompute_version, __version__]
        return digest([function, self.clip.fingerprint(), options])

    def precomputed(self, inputs: Inputs) -> dict[str, Tensor]:
        """The constants of a batch: as they came from the cache, or prepared from images now."""
        if isinstance(inputs, dict):
            known = {name: value.float() for name, value in inputs.items() if name != DOMAIN}
            # A batch may hold images beside what was computed of them, for a method whose tower changes.
            if self.needs_images or "images" not in known:
                return known
            inputs = known["images"]
        # Nothing that is computed once can have a gradient.
        with torch.no_grad():
            return self.precompute(inputs)

    @property
    def transform(self) -> Callable[[Any], Tensor]:
        """The transform from a PIL image to the model's input, [3, height, width]."""
        return self.clip.preprocess

    @property
    def train_transform(self) -> Callable[[Any], Tensor]:
        """The transform with augmentation, used where a data module asks for it."""
        return self.clip.train_preprocess

    def describe(self) -> dict[str, Any]:
        """The hyperparameters as plain values that JSON can hold; ``clip`` is which one is frozen."""
        taken = constructor_arguments(type(self))  # the command line adds others to the hyperparameters
        values = {name: self.hparams[name] for name in self.hparams if name in taken and name != "optimizer"}
        return {name: to_jsonable(values[name]) for name in sorted(values)}

    def shared_state(self) -> State:
        """What the server starts from: every tensor that some phase uploads."""
        uploaded: list[str] = []
        for phase in self.configure_phases():
            uploaded.extend(phase.upload)
        return detached(select(self.communicable_state(), uploaded))

    def upload_state(self) -> State:
        """What the client sends after the running phase: the tensors themselves, which the loop copies."""
        if self.context is None:
            raise RuntimeError("upload_state() is for a running phase. Call start_client(context) first.")
        return select(self.communicable_state(), self.context.phase.upload)

    def personal_state(self) -> State:
        """The personal tensors."""
        kept = (*self.personal, *self.train_only_personal)
        return detached(select(self.communicable_state(), kept)) if kept else {}

    def initial_personal_state(self, start: State) -> State:
        """What a client keeps before its first round; by default what the module began with."""
        return start

    @contextmanager
    def shared_part_alone(self) -> Iterator[None]:
        """Let ``forward`` do without the personal tensors in the block."""
        self.uses_personal = False
        try:
            yield
        finally:
            self.uses_personal = True

    def load_state(self, state: State) -> None:
        """Copy tensors into the module; raise UserError if a name is unknown or a shape differs."""
        copy_state(state, self.communicable_state(), owner=type(self).__name__)

    def communicable_state(self) -> dict[str, Tensor]:
        """All tensors by name, themselves and no copies; those of the frozen CLIP are not among them."""
        return self._frozen_tensors or self.state_dict(keep_vars=True)

    @contextmanager
    def frozen_tensor_set(self) -> Iterator[None]:
        """Collect :meth:`communicable_state` once for the block; raise UserError if a tensor was replaced in it."""
        fixed = self.communicable_state()
        # To collect them walks through all modules of the method, which takes longer than to copy prompts.
        self._frozen_tensors = fixed
        try:
            yield
        finally:
            self._frozen_tensors = None
        replaced = [name for name, tensor in self.communicable_state().items() if fixed.get(name) is not tensor]
        if replaced:
            raise UserError(
                f"{type(self).__name__} put new tensors in place of {', '.join(replaced)} during training. "
                "Change them in place (copy_, mul_), or register them with persistent=False if they are not sent."
            )

    def trainable_by_name(self) -> dict[str, Tensor]:
        """The parameters that get gradients now, by their names."""
        tensors = self.communicable_state().items()
        return {name: each for name, each in tensors if each.requires_grad and isinstance(each, nn.Parameter)}

    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training: only the phase's tensors get gradients."""
        self.context = context
        self._logged = {}
        for name, tensor in self.communicable_state().items():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(matches_prefix(context.phase.train, name))

    def logged_means(self) -> dict[str, float]:
        """The mean over the client's local steps of all that was logged."""
        return {name: torch.stack(values).float().mean().item() for name, values in self._logged.items()}

    def clear_logs(self) -> None:
        """Forget what was logged."""
        self._logged = {}

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """A fresh optimizer over the tensors that are trainable now; None if there are none."""
        trainable = list(self.trainable_by_name().values())
        if not trainable:
            return None
        if self.make_optimizer is None:
            raise UserError(f"{type(self).__name__} trains parameters but has no optimizer. Pass optimizer=...")
        return self.make_optimizer(trainable)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as in Lightning; in a federation the values are averaged over the client's local steps."""
        if self.context is not None:
            self._logged.setdefault(name, []).append(torch.as_tensor(value).detach())
        elif self._trainer is not None:
            super().log(name, value, *args, **kwargs)

    def local_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """The logits of what the running phase trains, as its loss sees them; by default those of ``forward``.

        Add-ons measure clients by them.
        """
        logits: Tensor = self(inputs)
        return logits

    def representation(self, inputs: Inputs) -> Float[Tensor, "B n"]:
        """What represents images where two states of the method are compared, as MOON does.

        By default these are the local logits less their mean over classes, on which probabilities do not depend.
        """
        logits = self.local_logits(inputs).float()
        return logits - logits.mean(-1, keepdim=True)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """The loss of a batch of inputs and labels; by default the cross-entropy."""
        inputs, labels = batch
        loss = F.cross_entropy(self(inputs), labels)
        self.log("loss", loss)
        return loss

    def evaluation_step(self, batch: Batch, stage: str) -> Float[Tensor, ""]:
        """Log and return the accuracy of a batch, in [0, 1]."""
        inputs, labels = batch
        accuracy: Tensor = (self(inputs).argmax(-1) == labels).float().mean()
        self.log(f"{stage}_accuracy", accuracy, prog_bar=True, batch_size=len(labels))
        return accuracy

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Log and return ``val_accuracy``."""
        return self.evaluation_step(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Log and return ``test_accuracy``."""
        return self.evaluation_step(batch, "test")

    def predict_step(self, batch: Batch | Inputs, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, "B C"]:
        """Return class probabilities; a batch may come with labels, which are ignored."""
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        return torch.softmax(self(inputs), -1)


def copy_state(state: State, tensors: Mapping[str, Tensor], owner: str) -> None:
    """Copy a state into the tensors of the same names; raise UserError for an unknown name or another shape."""
    if unknown := sorted(state.keys() - tensors.keys()):
        raise UserError(f"{owner} has no tensors named {unknown}; it has {sorted(tensors)}.")
    for name, value in state.items():
        # Checked, since copy_ would broadcast.
        expected = tuple(tensors[name].shape)
        if value.shape != expected:
            raise UserError(
                f"{owner} expects {name!r} in shape {expected}, got {tuple(value.shape)}. "
                "Use the prompt length, experts and CLIP that it was trained with."
            )
        tensors[name].detach().copy_(value)


def check_phases(module: FederatedModule) -> Sequence[Phase]:
    """Return the method's phases; raise UserError if a tensor is missing or leaks from one client to the next."""
    phases = tuple(module.configure_phases())
    method = type(module).__name__
    parameters = [name for name, _ in module.named_parameters()]
    # Buffers are sent too, and parameters that are not saved may be trained.
    existing = [*module.state_dict(), *parameters]
    kept = (*module.personal, *module.train_only_personal)
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):  # the server's memory is kept by the phase's name
        raise UserError(f"The phases of {method} are called {', '.join(names)}. Give each its own name.")
    for phase in phases:
        for prefix in (*phase.train, *phase.upload, *(phase.download or ()), *(phase.deploy or ()), *kept):
            if not any(matches_prefix((prefix,), name) for name in existing):
                raise UserError(f"Phase {phase.name!r} of {method} names {prefix!r}, but no tensor is called so.")
        for name in parameters:
            if matches_prefix(phase.train, name) and not matches_prefix((*phase.upload, *kept), name):
                raise UserError(
                    f"{method} trains {name!r} in phase {phase.name!r} but neither uploads nor keeps it, so it would "
                    "leak from one client to the next. Add it to the phase's upload or to `personal`."
                )
    return phases


def with_classes(method: FederatedModule, class_names: Sequence[str]) -> FederatedModule:
    """Make the same method for other classes, without its values; raise UserError if it knows only its own."""
    name = type(method).__name__
    trained_classes = list(method.hparams.get("class_names", ()))
    if not trained_classes:
        raise UserError(f"{name} takes no class_names, so it can't tell other classes. {ADVICE}.")
    others = _made_for(method, class_names)
    # Of as many other classes all shapes are equal, whatever they depend on: those of another number show it.
    probe = others
    if len(class_names) == len(trained_classes):
        # All of both lists, or one fewer where they are the same.
        both = list(dict.fromkeys([*trained_classes, *class_names]))
        probe = _made_for(method, both if len(both) != len(trained_classes) else both[:-1])
    expected = probe.state_dict()
    for tensor_name, tensor in method.state_dict().items():
        if tensor_name not in expected or expected[tensor_name].shape != tensor.shape:
            raise UserError(
                f"{name} learns for its own classes alone, as {tensor_name!r} has shape {tuple(tensor.shape)}, so it "
                f"can't tell other classes. {ADVICE}."
            )
    return others


def _made_for(method: FederatedModule, class_names: Sequence[str]) -> FederatedModule:
    arguments = constructor_arguments(type(method))
    options = {name: value for name, value in method.hparams.items() if name in arguments}
    options["class_names"] = list(class_names)
    # Neither is a hyperparameter, since a config describes both in its own way.
    parts = {"clip": getattr(method, "clip", None), "optimizer": getattr(method, "make_optimizer", None)}
    options |= {name: part for name, part in parts.items() if name in arguments and part is not None}
    with restored_generators():  # first values are drawn, and replaced by those of the method
        return type(method)(**options)


@contextmanager
def restored(module: FederatedModule) -> Iterator[None]:
    """Restore a method's tensors and mode after the block, in which others are loaded or it is trained."""
    before = detached(module.communicable_state())
    was_training = module.training
    try:
        yield
    finally:
        module.context = None
        module.load_state(before)
        module.train(was_training)
