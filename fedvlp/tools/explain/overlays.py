"""Where a class is seen in images, under fixed, mixed and single prompts (TRIP, Fig. 8; PLAN, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.tools.explain.methods import logits_by_prompt
from fedvlp.tools.explain.relevance import Logits, Method, differentiable_constants, differentiable_logits, relevance
from fedvlp.tools.explain.samples import Samples
from fedvlp.utils.errors import UserError

FIXED = "zero-shot CLIP"
"""What an untrained baseline is called beside the trained method."""


@dataclass(frozen=True)
class View:
    """What one classifier says of the images.

    Attributes:
        probabilities: of all classes, in [0, 1].
        maps: relevance of each patch for the class in question, at least 0.
    """

    probabilities: Float[Tensor, "B C"]
    maps: Float[Tensor, "B rows columns"]


def classifiers(module: FederatedModule, images: Float[Tensor, "B 3 V V"]) -> dict[str, Logits]:
    """Returns the logits under the fixed prompt, under what was trained, and under each prompt that this mixes."""
    found: dict[str, Logits] = {}
    baseline = module.baseline()
    if baseline is not None and baseline is not module:
        found[FIXED] = differentiable_logits(baseline)
    found[type(module).__name__] = differentiable_logits(module)
    with torch.no_grad():
        names = list(logits_by_prompt(module, module.constants(images)))
    found |= {name: _logits_of_prompt(module, name) for name in names}
    return found


def views(
    module: FederatedModule, images: Float[Tensor, "B 3 V V"], toward: Int[Tensor, "B"] | None, method: Method
) -> tuple[dict[str, View], Int[Tensor, "B"]]:
    """Returns what each classifier says of images, and the classes in question.

    Args:
        module: A method in evaluation mode.
        images: On its device.
        toward: The classes in question; what the method predicts if not given.
        method: How relevance is measured.
    """
    clip: Any = module.clip
    by_name = classifiers(module, images)
    with torch.no_grad():
        probabilities = {name: logits(images).float().softmax(dim=-1) for name, logits in by_name.items()}
    # All classifiers are asked for the same class, or their maps would not compare.
    classes = probabilities[type(module).__name__].argmax(dim=-1) if toward is None else toward
    own = getattr(module, "image_tower", None)
    found = {}
    for name, logits in by_name.items():
        maps = relevance(clip, logits, images, classes, method, None if name == FIXED else own)
        found[name] = View(probabilities[name].cpu(), maps.cpu())
    return found, classes.cpu()


def classes_in_question(toward: str, samples: Samples, class_names: Sequence[str]) -> Int[Tensor, "B"] | None:
    """Returns the class for which each image is looked at, None for the predicted one.

    Args:
        toward: ``predicted``, ``true``, or the name of a class.
        samples: The images.
        class_names: All classes.

    Raises:
        UserError: If there is no such class, or the true ones are not known.
    """
    if toward == "predicted":
        return None
    if toward in class_names:
        return torch.full((len(samples),), list(class_names).index(toward))
    if toward != "true":
        known = ", ".join(class_names)
        raise UserError(f"Expected --toward predicted, true or a class ({known}), but got {toward!r}.")
    if bool((samples.labels < 0).any()):
        raise UserError("The true classes of these files are not known. Pass --toward predicted or a class's name.")
    return samples.labels


def _logits_of_prompt(module: FederatedModule, name: str) -> Logits:
    def logits(images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        by_prompt: dict[str, Tensor] = logits_by_prompt(module, differentiable_constants(module, images))
        return by_prompt[name]

    return logits
