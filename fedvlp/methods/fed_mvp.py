"""FedMVP: a network computes visual prompts from an image's patches and from texts about the classes' attributes.

Paper: Singha et al., "FedMVP: Federated Multimodal Visual Prompt Tuning for Vision-Language Models", ICCV 2025.

Symbols: E patches of an image -> ``patches``; A, C x M x d, features of M attributes of each class, a_cm ->
``attributes``; A', P PromptFormer -> ``former``; f(x), f_0(x) image features with prompts and without; alpha ->
``consistency_weight``.
    P(A', E) = FFN(CrossAttention(E W_Q, A' W_K, A' W_V)), A' = Linear(A)      :class:`.PromptFormer`
    logits_c = mean_m cos(f(x; P), a_cm) / tau                                 :meth:`FedMVP.forward`
    L = cross-entropy + alpha (1 - cos(f(x; P), f_0(x))), means over images    :meth:`FedMVP.losses`
    theta <- sum_k |S_k| theta_k / sum_k |S_k|                                 :class:`.FedAvg`
theta does not depend on the classes, so it can be loaded into a module with different classes.

Deviations:
    * Attributes: The paper gets ten per class from a language model; fedvlp uses ``attributes``, or ten CLIP templates.
    * Texts: The released code puts the image's domain in place of "photo", also in tests, and cuts texts after 77
      letters. A test image's domain is unknown, so fedvlp uses "a photo of a [class], [attribute].".
    * Patches: The released code reads them before CLIP's first layer norm (``ln_pre``), which it then applies to
      patches and prompts. In fedvlp, they are read after it, and it applies only to the prompts.
    * f_0: The released code flips the image in half of the batches; fedvlp leaves it unchanged.
    * Steps: The released code takes one step per client and round, on the last batch; fedvlp steps on each batch.
    * Last stage: The released code trains low-rank updates once the loss is below 0.5; fedvlp omits this stage.
    * Schedule: A cosine over the rounds, as for FedTPG, because the released code builds on FedTPG's.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedImageEncoder, zero_shot_text_features
from fedvlp.clip.zero_shot import choose_templates
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt, Templates

Attributes = dict[str, list[str]]
"""Phrases such as "large, floppy ears" by class name, equally many per class."""


class FedMVP(PromptLearner):
    """A network, shared by all clients, that computes visual prompts for each image.

    Args:
        consistency_weight: Weight alpha of the distance from the image feature without prompts, at least 0.
        prompt_length: Number of prompts per image.
        heads: Number of attention heads; must divide the width of an image token.
        templates: Number of CLIP's templates that replace missing attributes, in [1, 80].
        attributes: Phrases such as "large, floppy ears" by class name, equally many per class; templates if null.
    """

    needs_images = True
    attributes: Tensor  # [C, M, d]

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        consistency_weight: NonNegativeFloat = 10.0,
        prompt_length: PositiveInt = 4,
        heads: PositiveInt = 4,
        templates: Templates = 10,
        attributes: Attributes | None = None,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.003, momentum=0.9, weight_decay=1e-5),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        width = self.clip.image_width
        if width % heads:
            raise UserError(f"Expected heads that divide {width}, the width of an image token; got {heads}.")
        self.consistency_weight = consistency_weight
        self.visual = PromptedImageEncoder(self.clip)
        features = attribute_features(self.clip, class_names, attributes, templates)
        self.register_buffer("attributes", features, persistent=False)
        self.former = PromptFormer(width, self.clip.embed_dim, heads, prompt_length)

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute the joint image features f(x; P), not normalised."""
        attributes = self.attributes.flatten(0, 1)
        return self.visual.encode_conditional(images, lambda patches: self.former(patches, attributes))

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of image features: the mean over each class's attributes of cos / tau."""
        # Attributes have length 1, so the mean of the cosines equals the product with their mean.
        mean = self.attributes.float().mean(dim=1)  # [C, d]
        return self.clip.logit_scale * F.normalize(features.float(), dim=-1) @ mean.T

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under the images' own prompts."""
        return self.logits(self.image_features(self.precomputed(inputs)["images"]))

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute the cross-entropy of a batch plus alpha times the mean distance from features without prompts."""
        images = self.precomputed(inputs)["images"]
        features = self.image_features(images)
        # f_0, the target of the consistency term, uses no prompts.
        with torch.no_grad():
            frozen = self.clip.encode_image(images)
        cross_entropy = F.cross_entropy(self.logits(features), labels)
        distance = 1 - F.cosine_similarity(features.float(), frozen.float(), dim=-1).mean()
        loss = cross_entropy + self.consistency_weight * distance
        return {"cross_entropy": cross_entropy, "distance": distance, "loss": loss}


class PromptFormer(nn.Module):
    """Network that computes prompts for each image: its patches attend to all classes' attributes, then an MLP follows.

    Each of the L prompts is the mean over a part of the patches.
    """

    def __init__(self, width: int, text_width: int, heads: int, prompt_length: int) -> None:
        super().__init__()
        self.prompt_length = prompt_length
        self.project = nn.Linear(text_width, width)
        self.patch_norm = nn.LayerNorm(width)
        self.attribute_norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8 * width))  # units and gates
        self.narrow = nn.Linear(4 * width, width)

    def forward(
        self, patches: Float[Tensor, "B patches W"], attributes: Float[Tensor, "A d"]
    ) -> Float[Tensor, "B L W"]:
        """Compute the prompts of each image; the order of the attributes does not matter."""
        values = self.project(attributes)
        keys = self.attribute_norm(values)
        # Patches attend only to attributes and not to each other, so all images can form one sequence.
        queries = self.patch_norm(patches).flatten(0, 1)  # [B patches, W]
        attended = self.attention(queries, keys, values, need_weights=False)[0]
        units, gates = self.mlp(attended).chunk(2, dim=-1)
        attended = attended + self.narrow(units * F.gelu(gates))
        tokens = attended.unflatten(0, patches.shape[:2])  # [B, patches, W]
        return F.adaptive_avg_pool1d(tokens.mT, self.prompt_length).mT


def attribute_features(
    clip: CLIP, class_names: Sequence[str], attributes: Attributes | None, templates: int
) -> Float[Tensor, "C M d"]:
    """Compute unit features of "a photo of a [class], [attribute]." for each attribute of each class.

    Without attributes, use the given number of CLIP's templates instead.
    """
    if attributes is None:
        chosen = choose_templates(templates, clip.spec.templates)
        return torch.stack([zero_shot_text_features(clip, class_names, [each]) for each in chosen], dim=1)
    counts = {name: len(attributes.get(name, ())) for name in class_names}
    number = max(counts.values())
    fewer = [name for name, count in counts.items() if count < number or not count]
    if fewer:
        raise UserError(
            f"Expected equally many attributes for each class, at least one, but {fewer[0]!r} has {counts[fewer[0]]} "
            f"and another class has {number}. List the attributes of each class under its name in the data."
        )
    columns = []
    for index in range(number):
        strings = [f"a photo of a {name}, {attributes[name][index]}." for name in class_names]
        columns.append(zero_shot_text_features(clip, strings, ["{}"]))
    return torch.stack(columns, dim=1)
