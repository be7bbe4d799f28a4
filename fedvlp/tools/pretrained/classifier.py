"""A trained method as a plain classifier of images: nothing of rounds, clients and losses is left at its surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import detached
from fedvlp.runs.checkpoint import save_prompts
from fedvlp.runs.descriptions import check_predicts, describe_model

PROMPTS_FILE = "prompts.safetensors"
"""What a run, a pushed folder and a repository of a hub call the trained tensors; the header names their method."""


class Classifier(nn.Module):
    """An image classifier in evaluation mode, without gradients: CLIP and what a method learned around it.

    Its ``state_dict`` holds what was learned and not the frozen CLIP, as a method's does.

    Args:
        method: the method, with the tensors that it is to classify with. It is frozen here, and kept.

    Attributes:
        class_names: the classes, in the order of the logits.
        image_size: V, the height and width of the images that :meth:`forward` takes, in pixels.

    Raises:
        UserError: if the method keeps tensors on each client, so that there is no one model.
    """

    def __init__(self, method: FederatedModule) -> None:
        super().__init__()
        check_predicts(method)
        self._learned = tuple(method.shared_state())  # known only as long as they are trainable
        self.method = method.requires_grad_(False)
        self.method.uses_personal = False  # they are at the clients
        self.class_names: list[str] = list(method.hparams["class_names"])
        self.image_size = int(cast(Any, method.clip).image_size)
        self.eval()

    @property
    def preprocess(self) -> Callable[[Image.Image], Tensor]:
        """From a PIL image to what :meth:`forward` takes of it: [3, V, V], normalised as CLIP's training images."""
        return self.method.transform

    def forward(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        """Returns the logits of images that :attr:`preprocess` made."""
        logits: Tensor = self.method(images)
        return logits

    @torch.no_grad()
    def predict(self, images: Sequence[Image.Image]) -> Float[Tensor, "B C"]:
        """Returns the probability of each class, in [0, 1], for images of any size, on the CPU."""
        device = next(self.parameters()).device
        pixels = torch.stack([self.preprocess(image) for image in images])
        return torch.softmax(self(pixels.to(device)), -1).float().cpu()

    def for_classes(self, class_names: Sequence[str]) -> Classifier:
        """Returns a classifier of other classes, with the same frozen CLIP and copies of what was learned.

        Raises:
            UserError: if the method learned for its own classes alone.
        """
        classifier = Classifier(self.method.for_classes(class_names))
        classifier._learned = self._learned
        return classifier

    def train(self, mode: bool = True) -> Classifier:
        """Stays in evaluation mode, also as a part of a module that trains."""
        return super().train(False)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Writes what :func:`fedvlp.from_pretrained` reads, and returns the file.

        Args:
            folder: where ``prompts.safetensors`` is written; made if it is not there.
        """
        path = Path(folder) / PROMPTS_FILE
        tensors = self.method.communicable_state()
        learned = detached({name: tensors[name] for name in self._learned})
        save_prompts(path, learned, {}, describe_model(self.method))
        return path
