"""Predictions of several classifiers for images, and the relevance of each patch for a class.

Relevance is computed from the gradient of the class's logit; the weights that mix prompts are treated as constants:

    ``grad_cam``    Selvaraju et al., "Grad-CAM", ICCV 2017, Eqs. 1 and 2 (TRIP, Fig. 8). The feature map of a ViT is
                    the input of the last block's attention, or its output if the ViT pools its patches. The feature
                    map of a ResNet or ConvNeXt is the output of its last stage.
    ``attention``   mean over heads of (A * dy/dA)+ , Chefer et al., "Generic attention-model explainability", ICCV
                    2021, Eq. 5: the row of the class token, averaged over blocks (PLAN, Fig. 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.clip.blocks import Blocks
from fedvlp.clip.image_towers import ImageTower, TimmTower
from fedvlp.core.module import FederatedModule
from fedvlp.core.several_labels import label_logits
from fedvlp.data import FederatedDataModule
from fedvlp.data.files.images import image_batches, image_paths
from fedvlp.tools.explain.methods import logits_by_prompt
from fedvlp.tools.trained_run import RunImage, drawable, evaluation_images, read_pixels
from fedvlp.utils.errors import UserError

ZERO_SHOT = "zero-shot CLIP"

Method = Literal["grad_cam", "attention"]
Logits = Callable[[Tensor], Tensor]
"""Maps images [B, 3, V, V] to logits [B, C], differentiable in the outputs of CLIP's image tower."""


@dataclass(frozen=True)
class Samples:
    """Images to explain.

    Attributes:
        pixels: Output of the method's transform.
        shown: Images to draw, in [0, 1].
        names: Names of the images.
        titles: Domain and class or labels, or the file's name if they are unknown.
        labels: Classes; -1 if unknown. Or whether each label applies [B, L]: 1, 0, or NaN if it is unknown.
    """

    pixels: Float[Tensor, "B 3 V V"]
    shown: Float[np.ndarray, "B V V 3"]
    names: list[str]
    titles: list[str]
    labels: Shaped[Tensor, "B ..."]

    def pages(self, size: int) -> list[Samples]:
        """Split the images into parts of at most ``size``, one for each figure."""
        columns: Any = (self.pixels, self.shown, self.names, self.titles, self.labels)
        starts = range(0, len(self.names), size)
        return [Samples(*(column[start : start + size] for column in columns)) for start in starts]


def read_samples(paths: Sequence[str], clip: CLIP) -> Samples:
    """Read image files and the images in folders, without labels."""
    files = image_paths(paths)
    names = [f"{path.parent.name}/{path.name}" for path in files]
    titles = [path.name for path in files]
    pixels = torch.cat([batch for _, batch in image_batches(files, clip.preprocess)])
    return Samples(pixels, drawable(clip, pixels), names, titles, torch.full((len(names),), -1))


def read_run_samples(images: Sequence[RunImage], class_names: Sequence[str], clip: CLIP) -> Samples:
    """Read images of a run with their labels."""
    labels = torch.from_numpy(np.stack([image.dataset.targets[image.position] for image in images]))
    titles = [f"{image.domain}: {true_names(label, class_names)}" for image, label in zip(images, labels, strict=True)]
    pixels = read_pixels(images)
    names = [image.name for image in images]
    return Samples(pixels, drawable(clip, pixels), names, titles, labels)


def true_names(label: Shaped[Tensor, "..."], class_names: Sequence[str]) -> str:
    """Name an image's class, or its labels; a question mark precedes unknown labels.

    >>> true_names(torch.tensor(1), ["cat", "dog"]), true_names(torch.tensor([torch.nan, 1]), ["cat", "dog"])
    ('dog', '?cat, dog')
    """
    if label.ndim == 0:
        return class_names[int(label)]
    values = zip(class_names, label.tolist(), strict=True)
    return ", ".join(name if value == 1 else f"?{name}" for name, value in values if value != 0) or "no label"


def choose_images(data: FederatedDataModule, count: int) -> list[RunImage]:
    """Choose images of held-out domains, or else of test or validation splits, evenly spread over each split."""
    present = {split.role for split in data.evaluation_splits()}
    role = next(role for role in ("held_out", "test", "validation") if role in present)
    domains = evaluation_images(data, role).values()
    images: list[RunImage] = []
    for number, candidates in enumerate(domains):
        share = count // len(domains) + (number < count % len(domains))
        images += [candidates[index] for index in spread(len(candidates), share)]
    return images


def spread(total: int, count: int) -> list[int]:
    """Choose up to ``count`` of ``total`` indices, at the centres of equal parts.

    >>> spread(10, 2), spread(2, 5)
    ([2, 7], [0, 1])
    """
    chosen = min(total, count)
    return [(2 * part + 1) * total // (2 * chosen) for part in range(chosen)]


@dataclass(frozen=True)
class Views:
    """Predictions and relevance maps of zero-shot CLIP, the trained method, and each prompt that it mixes.

    Attributes:
        classes: The class of each image's maps.
        probabilities: Probabilities of all classes, by classifier.
        maps: Relevance of each patch for the image's class, at least 0, by classifier.
        method: Measure of relevance.
    """

    classes: Int[Tensor, "B"]
    probabilities: dict[str, Float[Tensor, "B C"]]
    maps: dict[str, Float[Tensor, "B rows columns"]]
    method: Method


def compared_methods(module: FederatedModule) -> dict[str, FederatedModule]:
    """Name zero-shot CLIP, if it is another method, and the trained method."""
    baseline = module.baseline()
    untrained = {} if baseline is None or baseline is module else {ZERO_SHOT: baseline}
    return {**untrained, type(module).__name__: module}


def compute_views(
    module: FederatedModule, images: Float[Tensor, "B 3 V V"], classes: Int[Tensor, "B"] | None, method: Method
) -> Views:
    """Compute predictions and maps of each classifier, for the likeliest class or label if none are given."""
    classifiers = {name: differentiable_logits(method) for name, method in compared_methods(module).items()}
    with torch.no_grad():
        prompts = list(logits_by_prompt(module, module.precomputed(images)))
        classifiers |= {name: differentiable_logits(module, name) for name in prompts}
        activation = nn.Sigmoid() if module.has_several_labels else nn.Softmax(dim=-1)
        probabilities = {name: activation(logits(images).float()) for name, logits in classifiers.items()}
    if classes is None:
        classes = probabilities[type(module).__name__].argmax(dim=-1)
    # A method that fine-tunes has its own tower, which its baseline does not use.
    clip: Any = module.clip
    tuned_tower = getattr(module, "image_tower", None)
    # One backward pass per classifier, so that at most one graph is in memory.
    maps = {}
    for name, logits in classifiers.items():
        tower = None if name == ZERO_SHOT else tuned_tower
        maps[name] = relevance(clip, logits, images, classes, method, tower).cpu()
    return Views(classes.cpu(), {name: value.cpu() for name, value in probabilities.items()}, maps, method)


def choose_classes(toward: str, samples: Samples, class_names: list[str]) -> Int[Tensor, "B"] | None:
    """Choose the class of each image's map; None means the predicted class. Raise a UserError if it is unknown."""
    if toward == "predicted":
        return None
    if toward in class_names:  # checked first, since a class may be called "true"
        return torch.full((len(samples.names),), class_names.index(toward))
    if toward != "true":
        raise UserError(f"Expected --toward predicted, true or a class ({', '.join(class_names)}), got {toward!r}.")
    if samples.labels.ndim > 1:
        raise UserError("These images have several true labels. Pass --toward predicted or a label's name.")
    if bool((samples.labels < 0).any()):
        raise UserError("The true classes of these files are unknown. Pass --toward predicted or a class's name.")
    return samples.labels


def differentiable_logits(module: FederatedModule, prompt: str | None = None) -> Logits:
    """Make a method's logits, or its logits for one prompt, differentiable in the image tower's output."""
    clip: Any = module.clip

    def logits(images: Tensor) -> Tensor:
        inputs = module.precomputed(images)
        if "features" in inputs:  # precomputed features have no gradient
            inputs = {**inputs, "features": clip.encode_image(images)}
        outputs = module(inputs) if prompt is None else logits_by_prompt(module, inputs)[prompt]
        return label_logits(outputs) if module.has_several_labels else outputs

    return logits


def choose_method(clip: CLIP) -> Method:
    """Choose attention for a ViT with a class token, where Grad-CAM often marks the background, otherwise Grad-CAM."""
    return "attention" if getattr(clip.image, "reads_class_token", False) else "grad_cam"


def check_tower(clip: CLIP, method: Method) -> None:
    """Check that a measure of relevance supports the image tower."""
    tower = clip.image
    if tower.stages:
        if method == "attention":
            raise UserError(f"{tower.kind} has no attention between patches. Use --relevance grad_cam, or a ViT.")
        return
    tower = tower.require_prompts()  # raises for other towers
    if method == "attention" and not tower.reads_class_token:
        raise UserError(
            f"This {tower.kind} pools its patches, so no row of its attention represents the image. "
            "Use --relevance grad_cam, or a ViT with a class token, for example ViT-B-16."
        )


def relevance(
    clip: CLIP,
    logits: Logits,
    images: Float[Tensor, "B 3 V V"],
    classes: Int[Tensor, "B"],
    method: Method,
    tower: ImageTower | None = None,
) -> Float[Tensor, "B rows columns"]:
    """Compute how much each patch raises the logit of its image's class, at least 0, without a unit.

    ``tower`` is the classifier's image tower; None means CLIP's.

    Raises:
        UserError: If the method does not support the image tower.
        RuntimeError: If the logits do not come from this tower.
    """
    check_tower(clip, method)
    tower = tower or clip.image
    # Tokens of image prompts follow the patches.
    patches = slice(tower.num_prefix, clip.num_image_tokens)
    if method == "attention":
        ends = [end(block) for block in tower.blocks or () for end in (_attention_input, _attention_output)]
    else:
        ends = [_feature_map(tower)]
    with torch.enable_grad(), _record_tensors(ends) as recorded:
        scores = logits(images.detach().clone().requires_grad_())
        # An image's logits depend only on that image, so the sum's gradient contains each image's gradient.
        score = scores.gather(1, classes[:, None]).sum()
    if len(recorded) < len(ends):
        raise RuntimeError("These logits do not come from this image tower. Let `precompute` return `features`.")
    if method == "grad_cam":
        values = _grad_cam(score, recorded[_feature_map(tower)], patches)
    else:
        values = _weighted_attention(score, tower.require_prompts().blocks, recorded)[:, patches]
    side = isqrt(values.shape[1])
    return values.detach().float().reshape(-1, side, side)


LayerEnd = tuple[nn.Module, Literal["input", "output"]]
"""A layer, and whether its input or output is used."""


def _feature_map(tower: ImageTower) -> LayerEnd:
    if tower.stages:
        return tower.stages[-1], "output"
    tower = tower.require_prompts()
    last: Any = list(tower.blocks)[-1]
    if tower.reads_class_token:
        return _attention_input(last)
    return last.norm2 if isinstance(tower, TimmTower) else last.ln_2, "input"


def _attention_input(block: Any) -> LayerEnd:
    return (block.ln_1, "output") if isinstance(block, ResidualAttentionBlock) else (block.attn, "input")


def _attention_output(block: Any) -> LayerEnd:
    # In open_clip after the projection of the heads, in timm before it.
    return block.ls_1 if isinstance(block, ResidualAttentionBlock) else block.attn.norm, "input"


@contextmanager
def _record_tensors(ends: Sequence[LayerEnd]) -> Iterator[dict[LayerEnd, Tensor]]:
    """Record the call of each layer that has a gradient and the most tokens; calls with only prompts have fewer."""
    recorded: dict[LayerEnd, Tensor] = {}

    def record(end: LayerEnd, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        tensor = output if end[1] == "output" else inputs[0]
        is_longer = end not in recorded or tensor.numel() > recorded[end].numel()
        if output.requires_grad and is_longer:
            recorded[end] = tensor

    with ExitStack() as hooks:
        for end in ends:
            hooks.enter_context(end[0].register_forward_hook(partial(record, end)))
        yield recorded


def _grad_cam(score: Tensor, tokens: Tensor, patches: slice) -> Float[Tensor, "B patches"]:
    """Compute (sum_w alpha_w A_w)+, where alpha_w is the mean of dy / dA_w over patches."""
    (gradient,) = torch.autograd.grad(score, tokens)
    weights = _patch_tokens(gradient, patches).mean(dim=1)  # [B, W]
    return torch.einsum("bpw,bw->bp", _patch_tokens(tokens, patches), weights).relu()


def _patch_tokens(tokens: Tensor, patches: slice) -> Float[Tensor, "B patches W"]:
    if tokens.ndim == 4:  # feature map of a ResNet [B, W, rows, columns]
        return tokens.flatten(2).transpose(1, 2)
    return tokens[:, patches]


def _weighted_attention(score: Tensor, blocks: Blocks, recorded: Mapping[LayerEnd, Tensor]) -> Float[Tensor, "B N"]:
    """Compute the mean over blocks and heads of (A * dy/dA)+, in the row of the class token.

    Fused attention does not return weights, so the weights are computed from a block's input, and their gradient from
    the output's gradient.
    """
    gradients = torch.autograd.grad(score, [recorded[_attention_output(block)] for block in blocks])
    maps = []
    for index, (block, gradient) in enumerate(zip(blocks, gradients, strict=True)):
        query, key, value = blocks.heads(index, recorded[_attention_input(block)])
        weights = torch.einsum("bhd,bhnd->bhn", query[:, :, 0], key) / query.shape[-1] ** 0.5
        slopes = gradient[:, 0]  # of the class token, which comes first
        if isinstance(block, ResidualAttentionBlock):
            # The gradient of each head's output, by the chain rule through the output projection.
            slopes = slopes @ block.attn.out_proj.weight.to(gradient.dtype)  # [B, W]
        slopes = torch.unflatten(slopes, -1, (query.shape[1], -1))
        weighted = weights.softmax(-1) * torch.einsum("bhd,bhnd->bhn", slopes, value)
        maps.append(weighted.relu().mean(dim=1))
    return torch.stack(maps).mean(dim=0)
