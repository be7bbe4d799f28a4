"""A trained method as a plain image classifier, without rounds, clients and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.several_labels import label_logits
from fedvlp.core.state import detached
from fedvlp.data.files.images import intensity_of, read_rgb, to_rgb
from fedvlp.runs.checkpoint import save_prompts
from fedvlp.runs.descriptions import check_predicts, describe_model
from fedvlp.utils.errors import UserError

AnyImage: TypeAlias = str | Path | Image.Image | NDArray[Any] | Tensor

PROMPTS_FILE = "prompts.safetensors"
"""File of the trained tensors in a run, a pushed folder and a repository; its header names the method."""


class Classifier(nn.Module):
    """Image classifier of CLIP and a method's learned tensors, in evaluation mode and without gradients.

    Its ``state_dict`` contains the learned tensors, but not the frozen CLIP.

    Args:
        method: The method with its trained tensors. The classifier keeps a reference and freezes it.

    Attributes:
        class_names: The classes, or the labels if images have several, in the order of the logits.
        image_size: Height and width V of the images for :meth:`forward`, in pixels.

    Raises:
        UserError: If the method has personal tensors on each client, so that there is no shared model.

    >>> from fedvlp import PromptFL
    >>> Classifier(PromptFL(["cat", "dog"], clip="fedvlp-tiny")).for_classes(["fox", "owl"]).class_names
    ['fox', 'owl']
    """

    def __init__(self, method: FederatedModule) -> None:
        super().__init__()
        check_predicts(method)
        self._learned = tuple(method.shared_state())  # read before freezing
        self.method = method.requires_grad_(False)
        self.method.uses_personal = False
        self.class_names = method.label_names
        self.image_size = int(cast(Any, method.clip).image_size)
        self.eval()

    @property
    def preprocess(self) -> Callable[[Image.Image], Tensor]:
        """The transform of a PIL image to [3, V, V] for :meth:`forward`, normalised like CLIP's training images."""
        return self.method.transform

    def forward(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        """Compute the logits of images from :attr:`preprocess`."""
        logits = self.method.calibrated_logits(images)
        return label_logits(logits) if self.method.has_several_labels else logits

    @torch.no_grad()
    def predict(self, images: AnyImage | Sequence[AnyImage]) -> Float[Tensor, "B C"]:
        """Compute the probabilities of classes or labels of one or several images, in [0, 1] and on the CPU.

        An image is a path, a PIL image, a uint8 array [height, width, 3] or [height, width], or a tensor [3, V, V] from
        :attr:`preprocess`. Raises a UserError for anything else.
        """
        is_single = isinstance(images, (str, Path, Image.Image)) or getattr(images, "ndim", 4) < 4
        pixels = [self._pixels(image) for image in ([images] if is_single else list(cast(Any, images)))]
        device = next(self.parameters()).device
        logits: Tensor = self(torch.stack(pixels).to(device))
        return (logits.sigmoid() if self.method.has_several_labels else logits.softmax(-1)).float().cpu()

    def classify(self, images: AnyImage | Sequence[AnyImage]) -> list[dict[str, float]]:
        """Choose each image's likeliest class, or the labels that reach their thresholds, with their probabilities."""
        return [self.method.named_probabilities(row) for row in self.predict(images)]

    def _pixels(self, image: Any) -> Float[Tensor, "3 V V"]:
        expected = (3, self.image_size, self.image_size)
        if isinstance(image, Tensor) and image.is_floating_point() and image.shape == expected:
            return image.float().cpu()
        if isinstance(image, (str, Path)):
            return self.preprocess(read_rgb(image, intensity_of(self.preprocess)))
        if isinstance(image, np.ndarray) and image.dtype == np.uint8:
            image = Image.fromarray(image)
        if isinstance(image, Image.Image):
            return self.preprocess(to_rgb(image, intensity_of(self.preprocess)))
        found = f" of {image.dtype} and shape {tuple(image.shape)}" if hasattr(image, "shape") else ""
        raise UserError(
            f"Expected a path, a PIL image, a uint8 array [height, width, 3], or a tensor {list(expected)} from "
            f"preprocess, got {type(image).__name__}{found}."
        )

    def for_classes(self, class_names: Sequence[str]) -> Classifier:
        """Create a classifier for other classes, with the same frozen CLIP and copies of the learned tensors.

        Raises:
            UserError: If the method's parameters depend on its classes.
        """
        classifier = Classifier(self.method.for_classes(class_names))
        classifier._learned = self._learned
        return classifier

    def train(self, mode: bool = True) -> Classifier:
        """Stay in evaluation mode, even as a part of a module in training mode."""
        return super().train(False)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``prompts.safetensors`` for :func:`fedvlp.from_pretrained` to a folder, and return its path."""
        path = Path(folder) / PROMPTS_FILE
        tensors = self.method.communicable_state()
        learned = detached({name: tensors[name] for name in self._learned})
        save_prompts(path, learned, {}, describe_model(self.method))
        return path
