"""Trained methods as plain image classifiers, loaded from local files or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import fedvlp
from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.clip.weights import check_hub
from fedvlp.core.module import FederatedModule
from fedvlp.core.several_labels import label_logits
from fedvlp.core.state import detached
from fedvlp.data.files.images import intensity_of, read_rgb, to_rgb
from fedvlp.runs.checkpoint import save_prompts
from fedvlp.runs.descriptions import check_predicts, describe_model, load_deployed_to_all
from fedvlp.runs.run_folder import find_run_folder, read_model
from fedvlp.runs.trusted_classes import check_classes, is_own_class
from fedvlp.utils.errors import UserError

AnyImage: TypeAlias = str | Path | Image.Image | NDArray[Any] | Tensor

PROMPTS_FILE = "prompts.safetensors"
"""File of the trained tensors in a run, a pushed folder and a repository; its header names the method."""

HUB_PREFIX = "hf://"
SIGN_IN = (
    "Create a token with write access at https://huggingface.co/settings/tokens, then run `hf auth login` or set "
    "HF_TOKEN."
)


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


def from_pretrained(
    source: str | Path, *, clip: CLIPSpec | CLIP | str | None = None, allow: Sequence[str] = ()
) -> Classifier:
    """Load a trained model as an image classifier, a plain ``torch.nn.Module`` in evaluation mode.

    Its logits equal the logits of ``fedvlp predict``. By default only fedvlp's classes are instantiated, so that no
    foreign code runs.

    Classify an image with the newest run::

        classifier = from_pretrained("runs")
        probabilities = classifier.predict("photo.jpg")  # [1, C]

    Args:
        source: Folder of a run, of several runs (the newest) or of a pushed model; a ``prompts.safetensors`` or
            checkpoint; or a model on the hub as ``hf://user/name`` or ``hf://user/name@revision``.
        clip: The frozen CLIP, if it is already loaded or its weights have moved. It must have the same weights.
        allow: Modules and paths of classes that the file may name besides fedvlp's own. Importing them runs code.

    Raises:
        UserError: If there is no trained model, it is damaged or was trained with another CLIP, it names a class that
            is not allowed, or its method has personal tensors on each client.
    """
    if str(source).startswith(HUB_PREFIX):
        path = download_prompts(str(source))
    else:
        path = find_run_folder(Path(source)) / PROMPTS_FILE if Path(source).is_dir() else Path(source)
    model = read_model(path)
    check_classes(path, model, allow)
    method = make_method(path, model, clip)
    method.load_state(load_deployed_to_all(path, method))
    return Classifier(method)


def download_prompts(source: str) -> Path:
    """Download the trained tensors of a model on the hub, or find them in the local cache.

    Raises:
        UserError: If the repository has no trained tensors, or the hub can't be reached.
    """
    repository, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if try_to_load_from_cache(repository, PROMPTS_FILE, revision=revision or None) is None:
            check_hub()
        return Path(HfApi().hf_hub_download(repository, PROMPTS_FILE, revision=revision or None))
    except Exception as error:  # the hub's client raises errors of many packages
        raise UserError(f"{source} could not be loaded: {hub_problem(error)}") from error


def hub_problem(error: Exception) -> str:
    """Format the hub's own message in one line, with advice if the token is the cause."""
    message = " ".join(str(error).split()) or type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"{message} {SIGN_IN}" if status in (401, 403) else message


def make_method(path: Path, model: Mapping[str, Any], clip: CLIPSpec | CLIP | str | None = None) -> FederatedModule:
    """Create a file's untrained method by importing its trusted class; ``clip`` replaces the file's CLIP.

    Raises:
        UserError: If the class is not a method, is not installed, or does not accept the options.
    """
    class_path = model["class_path"]
    module, _, name = class_path.rpartition(".")
    try:
        kind: Any = getattr(fedvlp if is_own_class(class_path) else import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{path} needs {class_path!r}, which is not installed. Install it.") from error
    if not (isinstance(kind, type) and issubclass(kind, FederatedModule)):
        raise UserError(f"{path} names {class_path!r}, which is not a method. Pass a file that a run wrote.")
    try:
        options = {**model["init_args"], "clip": clip or CLIPSpec(**model["init_args"]["clip"])}
        return kind(**options)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{path} has options that this version of {kind.__name__} does not support: {error}. Use the version of "
            "fedvlp that wrote the file."
        ) from error
