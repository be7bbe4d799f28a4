"""Base class of methods: a LightningModule that declares its trained, uploaded and personal tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import lightning as L
import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import DOMAIN, Backbone, Batch, Inputs, Targets
from fedvlp.core.several_labels import classification_loss, has_negative_class, is_correct, label_names, probabilities
from fedvlp.core.state import State, detached, matches_prefix, select
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.utils.digests import constructor_arguments, digest, to_jsonable
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators
from fedvlp.version import __version__

HeldOutEvaluation = Literal["each", "mean", "shared"]
ADVICE = (
    "Use a method that shares its prompts or networks among all classes, such as PromptFL or TRIP, or a protocol "
    "without other classes"
)


class FederatedModule(L.LightningModule):
    """A method: prompts, routers and losses around one frozen CLIP. Subclasses must define only ``forward``.

    The default loss is the cross-entropy; override ``training_step`` to change it. ``lightning.Trainer`` trains the
    method centrally. ``Federation`` trains it on many clients, swapping their states in and out of this one module.

    Args:
        optimizer: Builds the optimizer of one client's local training from its trainable parameters.

    Attributes:
        personal: Names or name prefixes of tensors that stay on the client between rounds.
        held_out_evaluation: How to evaluate personal tensors on a domain that no client has. ``each``: mean accuracy
            over the clients' personal tensors. ``mean``: accuracy of the mean probabilities over these. ``shared``:
            accuracy without personal tensors.
        uses_personal: Whether ``forward`` may use personal tensors. False while only the shared part is evaluated.
        train_only_personal: Names of further personal tensors that only training needs.
        calibration_temperature: Divisor of a deployed method's logits, above 0, from ``fedvlp calibrate``.
        label_thresholds: Each label's lowest probability at which it is predicted, chosen in the last evaluation on
            source validation; empty for 50 %.
        strategy: How the server combines uploads, unless ``configure_phases`` is overridden.
        broadcast_once: Names or prefixes of constants that the server sends once, before the first round.
        image_statistics: Names or prefixes of uploads that are computed from images rather than learned.
        region_logits: Computes the logits of an image's regions [B, M, C] for GL-MCM, a score of images out of
            distribution; None if the method reads no regions.
        needs_images: Whether batches hold images because training changes the image tower. Otherwise they hold the
            joint image features of the frozen CLIP, which are computed once.
        supports_several_labels: Whether it can train on images with several labels, with the loss of :meth:`loss`.
        supports_one_label: Whether it can train on images with one label each.
        has_fixed_classes: Whether evaluation skips images of classes other than the module's own.
        precompute_options: Constructor options that ``precompute`` depends on. They are part of the cache's key. None
            for all options. Only methods that override ``precompute`` need it.
        precompute_version: Increase it whenever ``precompute`` changes, so that no outdated cache is read.
        needs_test_images: Whether evaluation shows it all unlabelled images of a domain before it predicts any, in
            :meth:`see_test_images`. Results then have a protocol of their own.
        needs_domains: Whether training inputs are a dict with each image's source domain, ``domain`` [B], from 0.
        context: Current round, phase and client; None outside a federation.
    """

    personal: tuple[str, ...] = ()
    held_out_evaluation: HeldOutEvaluation = "each"
    uses_personal: bool = True
    train_only_personal: tuple[str, ...] = ()
    calibration_temperature: float = 1.0
    label_thresholds: tuple[float, ...] = ()
    strategy: Strategy = FedAvg()
    broadcast_once: tuple[str, ...] = ()
    image_statistics: tuple[str, ...] = ()
    region_logits: Callable[[Inputs], Tensor] | None = None
    needs_images: bool = False
    supports_several_labels: bool = False
    supports_one_label: bool = True
    has_fixed_classes: bool = False
    needs_test_images: bool = False
    needs_domains: bool = False
    precompute_options: tuple[str, ...] | None = None
    precompute_version: int = 1
    strict_loading = False  # the frozen CLIP is not part of any checkpoint
    clip: Backbone

    def __init__(self, optimizer: OptimizerCallable | None = None) -> None:
        super().__init__()
        # Lightning collects the arguments of all subclass constructors. Configs describe CLIP and optimizer separately.
        self.save_hyperparameters(ignore=["clip", "optimizer"])
        self.make_optimizer = optimizer
        self.context: RoundContext | None = None
        self._logged: dict[str, list[Tensor]] = {}  # by name, one value per local step
        self._frozen_tensors: dict[str, Tensor] | None = None
        # Cached per list of classes, because building a copy encodes all class names.
        self._copies_by_classes: dict[tuple[str, ...], FederatedModule] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Drop the default optimizer, a lambda in the constructor's signature, because it can't be pickled."""
        state: dict[str, Any] = {**super().__getstate__(), "_copies_by_classes": {}}
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
        """Set the frozen CLIP as ``self.clip`` and record its specification in ``hparams``."""
        self.clip = clip
        self.save_hyperparameters({"clip": asdict(clip.spec)})

    def configure_phases(self) -> Sequence[Phase]:
        """List the phases of a round. The default phase trains all, uploads all but ``personal`` and averages."""
        names = tuple(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if not names:
            return ()
        shared = tuple(name for name in names if not matches_prefix(self.personal, name))
        return (Phase("train", train=names, upload=shared, strategy=self.strategy),)

    def for_classes(self, class_names: Sequence[str]) -> FederatedModule:
        """Copy the method for other classes; raise UserError if its parameters depend on the set of classes.

        For several labels, the negative class may be omitted, and new labels have a threshold of 50 %.
        """
        names = tuple(class_names)
        if self.has_several_labels and not has_negative_class(names):
            names += (self.hparams["class_names"][-1],)
        if names not in self._copies_by_classes:
            self._copies_by_classes[names] = rebuild_for_classes(self, names)
        method = self._copies_by_classes[names].to(self.device)
        method.load_state(self.communicable_state())
        method.calibration_temperature = self.calibration_temperature
        if self.has_several_labels:
            thresholds = dict(zip(self.label_names, self.thresholds, strict=True))
            method.label_thresholds = tuple(thresholds.get(name, 0.5) for name in method.label_names)
        return method.train(self.training)

    def baseline(self) -> FederatedModule | None:
        """Build the untrained method to compare results with, such as zero-shot CLIP; None for none."""
        return None

    def class_means_baseline(self, batches: Iterable[Batch]) -> FederatedModule | None:
        """Build a baseline that classifies by class means of training images; None unless batches hold features."""
        return None

    def precompute(self, images: Float[Tensor, "B 3 V V"]) -> dict[str, Tensor]:
        """Compute the per-image constants that are cached. Each tensor has shape [B, ...].

        The default is the joint image feature f(x), ``features`` [B, d]. A method may add other constants, such as
        routing weights. They must not depend on trained tensors or class names. Methods that ``needs_images`` get
        ``images``, which are not cached.
        """
        if self.needs_images:
            return {"images": images}
        return {"features": self.clip.encode_image(images)}

    @property
    def precomputes(self) -> bool:
        """Whether there are constants to cache. Otherwise batches hold images."""
        return not self.needs_images or type(self).precompute is not FederatedModule.precompute

    def precompute_key(self) -> str:
        """Hash all that :meth:`precompute` depends on, except the image. Methods with equal keys share a cache."""
        if type(self).precompute is FederatedModule.precompute:
            owner, options = FederatedModule, {}
        else:
            owner, options = type(self), self.describe()
            if self.precompute_options is not None:
                options = {name: options[name] for name in self.precompute_options}
        function = [owner.__module__, owner.__qualname__, self.precompute_version, __version__]
        return digest([function, self.clip.fingerprint(), options])

    def precomputed(self, inputs: Inputs) -> dict[str, Tensor]:
        """Get the constants of a batch, from the cache or computed from its images."""
        if isinstance(inputs, dict):
            constants = {name: value.float() for name, value in inputs.items() if name != DOMAIN}
            # A method that trains the image tower may need images as well as cached constants.
            if self.needs_images or "images" not in constants:
                return constants
            inputs = constants["images"]
        # Cached constants have no gradient, so these must not have one either.
        with torch.no_grad():
            return self.precompute(inputs)

    @property
    def label_names(self) -> list[str]:
        """The names of its probabilities: the class names, or the labels if images have several."""
        return label_names(self.hparams["class_names"])

    @property
    def has_several_labels(self) -> bool:
        """Whether it predicts several labels per image."""
        return has_negative_class(self.hparams.get("class_names", ()))

    @property
    def thresholds(self) -> list[float]:
        """Each label's lowest probability at which it is predicted."""
        return list(self.label_thresholds or [0.5] * len(self.label_names))

    def choose(self, probabilities: Float[Tensor, "B _"]) -> Tensor:
        """Choose each image's likeliest class [B], or whether each label reaches its threshold, bool [B, L]."""
        if self.has_several_labels:
            return probabilities >= probabilities.new_tensor(self.thresholds)
        return probabilities.argmax(-1)

    def named_probabilities(self, probabilities: Float[Tensor, "_"]) -> dict[str, float]:
        """Map an image's likeliest class, or each of its labels, to its probability in [0, 1]."""
        chosen = self.choose(probabilities[None])[0]
        positions = chosen.nonzero()[:, 0].tolist() if self.has_several_labels else [int(chosen)]
        return {self.label_names[position]: float(probabilities[position]) for position in positions}

    @property
    def transform(self) -> Callable[[Any], Tensor]:
        """The transform from a PIL image to the model's input, [3, height, width]."""
        return self.clip.preprocess

    @property
    def train_transform(self) -> Callable[[Any], Tensor]:
        """The transform with augmentation, used if the data module asks for it."""
        return self.clip.train_preprocess

    def describe(self) -> dict[str, Any]:
        """Describe the hyperparameters as JSON values; ``clip`` is the specification of the frozen CLIP."""
        arguments = constructor_arguments(type(self))  # the command line adds others to the hyperparameters
        values = {name: self.hparams[name] for name in self.hparams if name in arguments and name != "optimizer"}
        return {name: to_jsonable(values[name]) for name in sorted(values)}

    def shared_state(self) -> State:
        """Copy the server's initial state: every tensor that some phase uploads."""
        uploaded = [name for phase in self.configure_phases() for name in phase.upload]
        return detached(select(self.communicable_state(), uploaded))

    def upload_state(self) -> State:
        """Select the tensors that the client uploads after the current phase. They are not copies."""
        if self.context is None:
            raise RuntimeError("upload_state() needs a current phase. Call start_client(context) first.")
        return select(self.communicable_state(), self.context.phase.upload)

    def personal_state(self) -> State:
        """Copy the personal tensors."""
        names = (*self.personal, *self.train_only_personal)
        return detached(select(self.communicable_state(), names)) if names else {}

    def initial_personal_state(self, start: State) -> State:
        """Make a client's personal tensors before its first round; by default the module's initial ones, ``start``."""
        return start

    @contextmanager
    def shared_part_only(self) -> Iterator[None]:
        """Keep ``forward`` from using personal tensors inside the block."""
        self.uses_personal = False
        try:
            yield
        finally:
            self.uses_personal = True

    def load_state(self, state: State) -> None:
        """Copy tensors into the module; raise UserError if a name is unknown or a shape differs."""
        copy_state(state, self.communicable_state(), owner=type(self).__name__)

    def communicable_state(self) -> dict[str, Tensor]:
        """Collect all tensors by name except the frozen CLIP's. They are not copies."""
        return self._frozen_tensors or self.state_dict(keep_vars=True)

    @contextmanager
    def frozen_tensor_set(self) -> Iterator[None]:
        """Collect :meth:`communicable_state` once for the block; raise UserError if the block replaces a tensor."""
        # Collecting walks through all submodules, which takes longer than copying prompts.
        fixed = self._frozen_tensors = self.communicable_state()
        try:
            yield
        finally:
            self._frozen_tensors = None
        replaced = [name for name, tensor in self.communicable_state().items() if fixed.get(name) is not tensor]
        if replaced:
            raise UserError(
                f"{type(self).__name__} replaced the tensors {', '.join(replaced)} during training. "
                "Change them in place (copy_, mul_), or register them with persistent=False if they are not sent."
            )

    def trainable_by_name(self) -> dict[str, Tensor]:
        """Collect the parameters that currently get gradients."""
        tensors = self.communicable_state().items()
        return {name: tensor for name, tensor in tensors if tensor.requires_grad and isinstance(tensor, nn.Parameter)}

    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training: enable gradients of the phase's tensors only."""
        self.context = context
        self._logged = {}
        for name, tensor in self.communicable_state().items():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(matches_prefix(context.phase.train, name))
        # A pass begins like an epoch of Lightning's Trainer.
        if context.phase.one_pass:
            self.on_train_epoch_start()

    def logged_means(self) -> dict[str, float]:
        """Average each logged value over the client's local steps."""
        return {name: torch.stack(values).float().mean().item() for name, values in self._logged.items()}

    def clear_logs(self) -> None:
        """Discard all logged values."""
        self._logged = {}

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Build an optimizer over the parameters that currently get gradients; None if there are none."""
        trainable = self.trainable_by_name()
        if not trainable:
            return None
        if self.make_optimizer is None:
            raise UserError(f"{type(self).__name__} trains parameters but has no optimizer. Pass optimizer=...")
        return self.make_optimizer(self.parameter_groups(trainable))

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[Any]:
        """List the trained parameters for the optimizer, or parameter groups with their own options."""
        return list(trainable.values())

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as in Lightning. A federation averages the values over the client's local steps."""
        if self.context is not None:
            self._logged.setdefault(name, []).append(torch.as_tensor(value).detach())
        elif self._trainer is not None:
            super().log(name, value, *args, **kwargs)

    def see_test_images(self, batches: Iterable[Inputs]) -> None:
        """Adapt to a domain's unlabelled images before predicting them; nothing by default."""

    def local_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits that the current phase's loss uses; by default the output of ``forward``.

        Add-ons evaluate clients with these logits.
        """
        return self(inputs)

    def calibrated_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits for deployment: the output of ``forward`` divided by ``calibration_temperature``."""
        logits: Tensor = self(inputs)
        # Float32, because in half precision a division may make the two largest logits equal.
        return logits if self.calibration_temperature == 1 else logits.float() / self.calibration_temperature

    def representation(self, inputs: Inputs) -> Float[Tensor, "B n"]:
        """Represent images for add-ons that compare two states of the method, such as MOON.

        The default is the local logits minus their mean over classes, which does not affect probabilities.
        """
        logits = self.local_logits(inputs).float()
        return logits - logits.mean(-1, keepdim=True)

    def loss(self, logits: Float[Tensor, "B C"], targets: Targets) -> Float[Tensor, ""]:
        """Compute the cross-entropy for classes [B], or the binary one for several labels per image [B, L]."""
        return classification_loss(logits, targets)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Compute the loss of a batch of inputs and labels; by default the cross-entropy."""
        inputs, labels = batch
        loss = self.loss(self(inputs), labels)
        self.log("loss", loss)
        return loss

    def evaluation_step(self, batch: Batch, stage: str) -> Float[Tensor, ""]:
        """Compute and log the accuracy of a batch, in [0, 1]; with several labels per image, over all labels."""
        inputs, labels = batch
        accuracy = is_correct(self(inputs), labels).mean()
        self.log(f"{stage}_accuracy", accuracy, prog_bar=True, batch_size=len(labels))
        return accuracy

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Compute and log ``val_accuracy``."""
        return self.evaluation_step(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, ""]:
        """Compute and log ``test_accuracy``."""
        return self.evaluation_step(batch, "test")

    def predict_step(self, batch: Batch | Inputs, batch_idx: int, dataloader_idx: int = 0) -> Float[Tensor, "B C"]:
        """Compute the probability of each class, or of each label. Labels in the batch are ignored."""
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        return probabilities(self.calibrated_logits(inputs), self.hparams.get("class_names", ()))


def copy_state(state: State, tensors: Mapping[str, Tensor], owner: str) -> None:
    """Copy a state into the tensors of the same names; raise UserError for an unknown name or a wrong shape."""
    if unknown := sorted(state.keys() - tensors.keys()):
        raise UserError(f"{owner} has no tensors named {unknown}; it has {sorted(tensors)}.")
    for name, value in state.items():
        # copy_ would broadcast a wrong shape.
        expected = tuple(tensors[name].shape)
        if value.shape != expected:
            raise UserError(
                f"{owner} expects {name!r} in shape {expected}, got {tuple(value.shape)}. "
                "Use the prompt length, experts and CLIP that it was trained with."
            )
        tensors[name].detach().copy_(value)


def check_phases(module: FederatedModule) -> Sequence[Phase]:
    """List the method's phases; raise UserError if a tensor is missing or leaks from one client to the next."""
    phases = tuple(module.configure_phases())
    method = type(module).__name__
    parameters = [name for name, _ in module.named_parameters()]
    # Buffers may be uploaded, and parameters outside the state dict may be trained.
    existing = [*module.state_dict(), *parameters]
    personal = (*module.personal, *module.train_only_personal)
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):  # the server's memory is stored by phase name
        raise UserError(f"The phases of {method} are called {', '.join(names)}. Give each its own name.")
    for phase in phases:
        for prefix in (*phase.train, *phase.upload, *(phase.download or ()), *(phase.deploy or ()), *personal):
            if not any(matches_prefix((prefix,), name) for name in existing):
                raise UserError(f"Phase {phase.name!r} of {method} names {prefix!r}, but no tensor has that name.")
        for name in parameters:
            if matches_prefix(phase.train, name) and not matches_prefix((*phase.upload, *personal), name):
                raise UserError(
                    f"{method} trains {name!r} in phase {phase.name!r} but neither uploads nor keeps it, so it would "
                    "leak from one client to the next. Add it to the phase's upload or to `personal`."
                )
    return phases


def rebuild_for_classes(method: FederatedModule, class_names: Sequence[str]) -> FederatedModule:
    """Build the same method for other classes, with initial values; raise UserError if it depends on its classes."""
    name = type(method).__name__
    trained_classes = list(method.hparams.get("class_names", ()))
    if not trained_classes:
        raise UserError(f"{name} has no argument class_names, so it can't classify other classes. {ADVICE}.")
    rebuilt = _construct(method, class_names)
    # Equal numbers of classes give equal shapes, so only a different number shows which tensors depend on the classes.
    probe = rebuilt
    if len(class_names) == len(trained_classes):
        # The union of both lists, or one class fewer if they are the same.
        union = list(dict.fromkeys([*trained_classes, *class_names]))
        probe = _construct(method, union if len(union) != len(trained_classes) else union[:-1])
    expected = probe.state_dict()
    for tensor_name, tensor in method.state_dict().items():
        if tensor_name not in expected or expected[tensor_name].shape != tensor.shape:
            raise UserError(
                f"{name} can't classify other classes, because the shape of {tensor_name!r}, {tuple(tensor.shape)}, "
                f"depends on the classes. {ADVICE}."
            )
    return rebuilt


def _construct(method: FederatedModule, class_names: Sequence[str]) -> FederatedModule:
    arguments = constructor_arguments(type(method))
    options = {name: value for name, value in method.hparams.items() if name in arguments}
    options["class_names"] = list(class_names)
    # Configs describe CLIP and optimizer separately, so neither is a hyperparameter.
    parts = {"clip": getattr(method, "clip", None), "optimizer": getattr(method, "make_optimizer", None)}
    options |= {name: part for name, part in parts.items() if name in arguments and part is not None}
    with restored_generators():  # the constructor draws initial values
        return type(method)(**options)


@contextmanager
def restored(module: FederatedModule) -> Iterator[None]:
    """Restore a method's tensors and mode after a block that loads other tensors or trains it."""
    before = detached(module.communicable_state())
    was_training = module.training
    try:
        yield
    finally:
        module.context = None
        module.load_state(before)
        module.train(was_training)
