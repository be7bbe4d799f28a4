"""What is computed of images: who predicts what, and which patches speak for a class.

Relevance of a patch for a class, by the gradient of the class's logit:

    ``grad_cam``    Selvaraju et al., "Grad-CAM", ICCV 2017, Eqs. 1 and 2. The feature map of a ViT is what goes into
                    the attention of the last block, the last layer where patches act on the class token; in a ViT
                    that pools its patches it is what comes out of that attention. That of a ResNet or
                    ConvNeXt is the output of its last stage. (TRIP, Fig. 8)
    ``attention``   mean over heads of (A * dy/dA)+ , Chefer et al., "Generic attention-model explainability", ICCV
                    2021, Eq. 5; its row of the class token, averaged over blocks (PLAN, Fig. 7).

The tower is read through forward hooks and never changed, and the mixture of a method's prompts counts as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from fedvlp.clip import CLIP
from fedvlp.clip.blocks import Blocks
from fedvlp.clip.image_towers import ConvNeXtTower, ImageTower, ResNetTower, TimmTower
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.data.files.images import image_batches, image_paths
from fedvlp.tools.explain.methods import logits_by_prompt
from fedvlp.tools.trained_run import RunImage, evaluation_images, read_pixels
from fedvlp.utils.errors import UserError

ZERO_SHOT = "zero-shot CLIP"
"""Name of a method's untrained baseline in pictures."""

Method = Literal["grad_cam", "attention"]
Logits = Callable[[Tensor], Tensor]
"""From images [B, 3, V, V] to logits [B, C], differentiable in what CLIP's image tower computes."""


@dataclass(frozen=True)
class Samples:
    """Images to look at one by one.

    Attributes:
        pixels: of the images, as the method's transform puts them out.
        shown: the same to be drawn, in [0, 1].
        names: of the images.
        titles: above them: domain and class, or the file's name where these are not known.
        labels: the class of each; -1 where it is not known.
    """

    pixels: Float[Tensor, "B 3 V V"]
    shown: Float[np.ndarray, "B V V 3"]
    names: list[str]
    titles: list[str]
    labels: Int[Tensor, "B"]

    def pages(self, size: int) -> list[Samples]:
        """Returns the images in parts of at most this size, one for each figure."""
        pages = []
        for start in range(0, len(self.names), size):
            rows = slice(start, start + size)
            pages.append(
                Samples(self.pixels[rows], self.shown[rows], self.names[rows], self.titles[rows], self.labels[rows])
            )
        return pages


def samples_of_files(paths: Sequence[str], clip: CLIP) -> Samples:
    """Returns image files and those in folders, without labels."""
    files = image_paths(paths)
    names = [f"{path.parent.name}/{path.name}" for path in files]
    titles = [path.name for path in files]
    pixels = torch.cat([batch for _, batch in image_batches(files, clip.preprocess)])
    return Samples(pixels, drawable(clip, pixels), names, titles, torch.full((len(names),), -1))


def samples_of_run(images: Sequence[RunImage], class_names: Sequence[str], clip: CLIP) -> Samples:
    """Returns images of a run with their labels."""
    labels = [image.label for image in images]
    titles = [f"{image.domain}: {class_names[label]}" for image, label in zip(images, labels, strict=True)]
    pixels = read_pixels(images)
    names = [image.name for image in images]
    return Samples(pixels, drawable(clip, pixels), names, titles, torch.tensor(labels))


def spread_images(data: FederatedDataModule, count: int) -> list[RunImage]:
    """Returns images of the held-out domains, else of the test splits, else of validation, evenly spread over each."""
    present = {split.role for split in data.evaluation_splits()}
    # The farther from training, the more a picture tells of the method.
    role = next(role for role in ("held_out", "test", "validation") if role in present)
    domains = evaluation_images(data, role).values()
    images: list[RunImage] = []
    for number, of_domain in enumerate(domains):
        # The first domains get one image more where the count is no multiple of their number.
        share = count // len(domains) + (number < count % len(domains))
        images += [of_domain[index] for index in spread(len(of_domain), share)]
    return images


def spread(total: int, count: int) -> list[int]:
    """Returns up to ``count`` of ``total`` indices, each in the middle of an equal part.

    >>> spread(10, 2), spread(2, 5)
    ([2, 7], [0, 1])
    """
    chosen = min(total, count)
    return [(2 * part + 1) * total // (2 * chosen) for part in range(chosen)]


def pixel_scale(clip: CLIP, like: Tensor) -> tuple[Float[Tensor, "3 1 1"], Float[Tensor, "3 1 1"]]:
    """Returns the mean and deviation by which CLIP's transform normalises, with a tensor's type and device."""
    options: Any = clip.preprocess_options
    return torch.tensor(options.mean).to(like)[:, None, None], torch.tensor(options.std).to(like)[:, None, None]


def denormalised(clip: CLIP, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B 3 V V"]:
    """Returns images as pixels in [0, 1], from what CLIP's transform puts out."""
    mean, deviation = pixel_scale(clip, images)
    return (images * deviation + mean).clamp(0, 1)


def drawable(clip: CLIP, pixels: Float[Tensor, "B 3 V V"]) -> Float[np.ndarray, "B V V 3"]:
    """Returns transformed images as the tower sees them, resized and cropped, in [0, 1]."""
    shown: Float[np.ndarray, "B V V 3"] = denormalised(clip, pixels.float()).permute(0, 2, 3, 1).numpy()
    return shown


@dataclass(frozen=True)
class Views:
    """What zero-shot CLIP, a trained method, and each of the prompts that it mixes say of images.

    Attributes:
        classes: the class for which each image is looked at.
        probabilities: of all classes, by classifier.
        maps: relevance of each patch for that class, at least 0, by classifier.
        method: how it is measured.
    """

    classes: Int[Tensor, "B"]
    probabilities: dict[str, Float[Tensor, "B C"]]
    maps: dict[str, Float[Tensor, "B rows columns"]]
    method: Method


def views(
    module: FederatedModule, images: Float[Tensor, "B 3 V V"], classes: Int[Tensor, "B"] | None, method: Method
) -> Views:
    """Returns what each classifier says of images, of the predicted classes if no others are given."""
    trained = type(module).__name__
    classifiers: dict[str, Logits] = {}
    baseline = module.baseline()
    if baseline is not None and baseline is not module:
        classifiers[ZERO_SHOT] = differentiable_logits(baseline)
    classifiers[trained] = differentiable_logits(module)
    with torch.no_grad():
        prompts = list(logits_by_prompt(module, module.precomputed(images)))
        classifiers |= {name: differentiable_logits(module, name) for name in prompts}
        probabilities = {name: logits(images).float().softmax(dim=-1) for name, logits in classifiers.items()}
    # All maps are of the same class, or they would not compare.
    if classes is None:
        classes = probabilities[trained].argmax(dim=-1)
    # A method that fine-tunes has a tower of its own, which its baseline does not run.
    clip: Any = module.clip
    tuned_tower = getattr(module, "image_tower", None)
    # One backward pass each, so that no classifier holds the graph of another.
    maps = {}
    for name, logits in classifiers.items():
        tower = None if name == ZERO_SHOT else tuned_tower
        maps[name] = relevance(clip, logits, images, classes, method, tower).cpu()
    return Views(classes.cpu(), {name: value.cpu() for name, value in probabilities.items()}, maps, method)


def classes_in_question(toward: str, samples: Samples, class_names: list[str]) -> Int[Tensor, "B"] | None:
    """Returns the class for which each image is looked at, None for the predicted one.

    Raises:
        UserError: if there is no such class, or the true ones are not known.
    """
    if toward == "predicted":
        return None
    # A class may be called "true"; its name goes before the word.
    if toward in class_names:
        return torch.full_like(samples.labels, class_names.index(toward))
    if toward != "true":
        names = ", ".join(class_names)
        raise UserError(f"Expected --toward predicted, true or a class ({names}), but got {toward!r}.")
    if bool((samples.labels < 0).any()):
        raise UserError("The true classes of these files are not known. Pass --toward predicted or a class's name.")
    return samples.labels


def differentiable_logits(module: FederatedModule, prompt: str | None = None) -> Logits:
    """Returns a method's logits, or those under one of its prompts, with a gradient to the image tower.

    Its own ``precomputed`` cuts that off, so ``features`` are computed again; all else, such as routing weights, is
    constant.
    """
    clip: Any = module.clip

    def logits(images: Tensor) -> Tensor:
        inputs = module.precomputed(images)
        if "features" in inputs:
            inputs = {**inputs, "features": clip.encode_image(images)}
        return module(inputs) if prompt is None else logits_by_prompt(module, inputs)[prompt]

    return logits


def suited_method(clip: CLIP) -> Method:
    """Returns attention for a ViT with a class token, where Grad-CAM often marks the background; else Grad-CAM."""
    return "attention" if getattr(clip.image, "reads_class_token", False) else "grad_cam"


def check_tower(clip: CLIP, method: Method) -> None:
    """Checks that a method of relevance can look into the image tower."""
    tower = clip.image
    if isinstance(tower, (ResNetTower, ConvNeXtTower)):
        if method == "attention":
            raise UserError(f"{tower.kind} has no attention between patches. Use --relevance grad_cam, or a ViT.")
        return
    tower = tower.for_prompts()  # else refused now
    if method == "attention" and not tower.reads_class_token:
        raise UserError(
            f"This {tower.kind} pools its patches, so that no row of its attention speaks for the image. "
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
    """Returns how much each patch raises the logit of its image's class, at least 0, in no particular unit.

    ``tower`` is the image tower that the classifier runs; CLIP's if not given.

    Raises:
        UserError: if the image tower is of a kind in which the method cannot look.
        RuntimeError: if the logits do not come from this tower.
    """
    check_tower(clip, method)
    tower = tower or clip.image
    # Behind the patches are the tokens of image prompts, if there are any.
    patches = slice(tower.num_prefix, clip.num_image_tokens)
    if method == "attention":
        layers = [
            layer for block in tower.blocks or () for layer, _ in (_attention_input(block), _attention_read(block))
        ]
    else:
        layers = [_feature_map(tower)[0]]
    with torch.enable_grad(), _recorded(layers) as calls:
        scores = logits(images.detach().clone().requires_grad_())
        # An image's logits depend on that image alone, so one gradient of the sum is that of each.
        score = scores.gather(1, classes[:, None]).sum()
    if len(calls) < len(layers):
        raise RuntimeError("These logits do not come from this image tower. Keep `features` in what is precomputed.")
    if method == "grad_cam":
        values = _grad_cam(score, _recorded_tensor(calls, _feature_map(tower)), patches)
    else:
        values = _weighted_attention(score, tower.for_prompts().blocks, calls)[:, patches]
    side = isqrt(values.shape[1])
    return values.detach().float().reshape(-1, side, side)


Calls = dict[nn.Module, tuple[Tensor, Tensor]]
"""Input and output of a layer's call."""

Place = tuple[nn.Module, Literal["input", "output"]]
"""Where a tensor is seen: at the one end or the other of a layer."""


def _feature_map(tower: ImageTower) -> Place:
    """Where Grad-CAM looks, in a tower that it can look into."""
    if isinstance(tower, (ResNetTower, ConvNeXtTower)):
        return tower.last_stage, "output"
    tower = tower.for_prompts()
    last: Any = list(tower.blocks)[-1]
    if tower.reads_class_token:
        return _attention_input(last)
    return last.norm2 if isinstance(tower, TimmTower) else last.ln_2, "input"


def _attention_input(block: Any) -> Place:
    """Where what goes into a block's attention is seen."""
    return (block.ln_1, "output") if isinstance(block, ResidualAttentionBlock) else (block.attn, "input")


def _attention_read(block: Any) -> Place:
    """Where what attention has read is seen: in open_clip behind the projection of the heads, in timm before it."""
    return block.ls_1 if isinstance(block, ResidualAttentionBlock) else block.attn.norm, "input"


def _recorded_tensor(calls: Calls, place: Place) -> Tensor:
    layer, end = place
    return calls[layer][end == "output"]


@contextmanager
def _recorded(layers: Sequence[nn.Module]) -> Iterator[Calls]:
    """Records, of each layer's calls in the block through which a gradient flows, that of the most tokens.

    Some methods encode prompts by themselves as well, in shorter sequences.
    """
    calls: Calls = {}

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        is_longer = layer not in calls or output.numel() > calls[layer][1].numel()
        if output.requires_grad and is_longer:
            calls[layer] = (inputs[0], output)

    # Hooks see the tensors that autograd knows, whichever code calls the layer.
    handles = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _grad_cam(score: Tensor, tokens: Tensor, patches: slice) -> Float[Tensor, "B patches"]:
    """Returns (sum_w alpha_w A_w)+ with alpha_w the mean over patches of dy / dA_w."""
    (gradient,) = torch.autograd.grad(score, tokens)
    # Of patches alone: a class token has no place in the image.
    weights = _patch_tokens(gradient, patches).mean(dim=1)  # [B, W]
    return torch.einsum("bpw,bw->bp", _patch_tokens(tokens, patches), weights).relu()


def _patch_tokens(tokens: Tensor, patches: slice) -> Float[Tensor, "B patches W"]:
    """Returns those of patches, of a ViT's tokens [B, N, W] or of a ResNet's feature map [B, W, rows, columns]."""
    if tokens.ndim == 4:
        return tokens.flatten(2).transpose(1, 2)
    return tokens[:, patches]


def _weighted_attention(score: Tensor, blocks: Blocks, calls: Calls) -> Float[Tensor, "B N"]:
    """Returns the mean over blocks and heads of (A * dy/dA)+, in the row of the class token.

    Attention weights are computed again from what goes into a block, as fused attention shows none; their gradient
    comes from that of what attention has read.
    """
    gradients = torch.autograd.grad(score, [_recorded_tensor(calls, _attention_read(block)) for block in blocks])
    maps = []
    for index, (block, gradient) in enumerate(zip(blocks, gradients, strict=True)):
        query, key, value = blocks.heads(index, _recorded_tensor(calls, _attention_input(block)))
        weights = torch.einsum("bhd,bhnd->bhn", query[:, :, 0], key) / query.shape[-1] ** 0.5
        slopes = gradient[:, 0]  # of the class token, which comes first
        if isinstance(block, ResidualAttentionBlock):
            # The gradient of what each head reads, by the chain rule through the output projection.
            slopes = slopes @ block.attn.out_proj.weight.to(gradient.dtype)  # [B, W]
        slopes = torch.unflatten(slopes, -1, (query.shape[1], -1))
        # What lowers the logit is left out, head by head.
        weighted = weights.softmax(-1) * torch.einsum("bhd,bhnd->bhn", slopes, value)
        maps.append(weighted.relu().mean(dim=1))
    return torch.stack(maps).mean(dim=0)
