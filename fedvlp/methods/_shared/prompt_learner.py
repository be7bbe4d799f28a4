"""What all methods have in common that learn prompts around a frozen CLIP."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any, cast

import lightning as L
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.methods.zero_shot import ZeroShotCLIP
from fedvlp.utils.ranges import Names


class PromptLearner(FederatedModule, ABC):
    """A method that learns prompts for a frozen CLIP; it stands beside zero-shot CLIP in tables.

    Batches hold CLIP's image features, which are computed once, unless the method says that it ``needs_images``.

    Args:
        class_names: The classes, in the order of the labels.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        optimizer: Makes the optimizer of a client's local training.
    """

    clip: CLIP

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        optimizer: OptimizerCallable | None = None,
    ) -> None:
        super().__init__(optimizer)
        self.class_names = class_names
        self.set_backbone(load_clip(clip))

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Records the options of the constructor that calls it, as in Lightning, and which CLIP is frozen.

        The arguments ``clip`` and ``optimizer`` themselves are left out.
        """
        left_out = [ignore] if isinstance(ignore, str) else list(ignore or ())
        caller = frame or cast(FrameType, inspect.currentframe()).f_back
        # Lightning looks for arguments in all frames of methods that know their class, as `super()` makes them
        save = L.LightningModule.save_hyperparameters
        save(self, *args, ignore=[*left_out, "clip", "optimizer"], frame=caller, logger=logger)
        save(self, {"clip": asdict(self.clip.spec)}, frame=caller, logger=logger)

    def baseline(self) -> ZeroShotCLIP:
        """Returns zero-shot CLIP with the same towers."""
        return ZeroShotCLIP(self.class_names, self.clip)

    @abstractmethod
    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits of a batch, made from ``self.constants(inputs)``."""

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Returns the loss of a batch of inputs and labels; by default the cross-entropy."""
        inputs, labels = batch
        loss = F.cross_entropy(self(inputs), labels)
        self.log("loss", loss)
        return loss
