"""Local training steps as the papers' released code does them, written from their description.

One text call for each prompt, with whole sequences; both image towers on every batch; nothing is kept from one step to
the next. What a method has only one of is computed once, and images go through a tower as one batch. Losses are the
library's, whose values stand in equations that are tested elsewhere.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reference import Call, Reference, backward, train, without_gradient
from benchmarks.reference_towers import reference_images
from fedvlp.methods._shared.teacher import distillation_losses
from fedvlp.methods.diprompt.diprompt import DiPrompT
from fedvlp.methods.diprompt.losses import domain_terms, query_terms
from fedvlp.methods.fed_dpt.adapt import ADAPT
from fedvlp.methods.fed_dpt.losses import pairs_correspondence
from fedvlp.methods.plan.plan import PLAN
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.trip.trip import TRIP
from fedvlp.ops import cosine_logits


class TRIPReference(Reference):
    """One text call for each image; features of the student and of the teacher from two passes of the same tower."""

    module: TRIP

    def loss(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Returns cross-entropy and divergence from zero-shot CLIP."""
        features, again = self.frozen(images), self.frozen(images)
        teacher = cosine_logits(again, self.module.teacher.text_features, self.scale)
        logits = []
        for feature, weights in zip(features, constants["train_weights"], strict=True):
            prompt = torch.einsum("e,eld->ld", weights, self.module.experts)
            logits.append(cosine_logits(feature[None], self.texts(prompt), self.scale))
        return distillation_losses(torch.cat(logits), labels, teacher, self.module.kl_weight)["loss"]

    def calls(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> list[Call]:
        """Returns the step for the first two images; with many classes the two image calls and one text call."""
        if len(self.texts) < 100:
            few = {name: value[:2] for name, value in constants.items()}
            step = partial(train, self, images[:2], labels[:2], few)
            return [Call(f"2 of {len(images)} images", step, len(images) / 2)]
        image = Call("an image call", partial(self.frozen, images), 2)
        return [image, self.text_call(f"1 of {len(images)} text calls", self.module.experts[0], len(images))]


class PromptFLReference(Reference):
    """One text call and one image call."""

    module: PromptFL

    def loss(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Returns the cross-entropy."""
        return F.cross_entropy(cosine_logits(self.frozen(images), self.texts(self.module.prompt), self.scale), labels)

    def calls(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> list[Call]:
        """Returns the two calls."""
        images_call = Call("the image call", partial(self.frozen, images))
        return [images_call, self.text_call("the text call", self.module.prompt)]


class DiPrompTReference(Reference):
    """A text call for the global prompt, each domain's, and the question prompt with each domain's name."""

    module: DiPrompT

    def __init__(self, module: DiPrompT, cut: bool) -> None:
        super().__init__(module, cut)
        self.domains: list[str] = module.hparams["domains"]
        names = module.class_names
        self.own = [self.text([f"{domain} {name}" for name in names]) for domain in self.domains]
        self.asked = [self.text([f"{name} with the domain of {domain}" for name in names]) for domain in self.domains]

    def loss(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Returns L_G + lambda L_D + L_Q of a client's first step."""
        module, features = self.module, self.frozen(images)
        if module.global_prompt is None or module.domain_prompts is None or module.query_prompt is None:
            raise ValueError("The reference has all three kinds of prompts.")
        pairs = torch.stack([text(module.query_prompt) for text in self.asked], dim=1)  # [C, M, d]
        logits = cosine_logits(features, pairs.flatten(0, 1), self.scale).view(len(images), *pairs.shape[:2])
        domains = logits[torch.arange(len(labels)), labels].argmax(dim=1)
        own = torch.stack([text(prompt) for text, prompt in zip(self.own, module.domain_prompts, strict=True)], dim=1)
        terms = domain_terms(features, labels, domains, own, module.domain_text.handwritten, self.scale)
        terms = {name: module.domain_weight * term for name, term in terms.items()}
        terms |= query_terms(features, labels, pairs, pairs.detach(), self.scale)
        common = F.cross_entropy(cosine_logits(features, self.texts(module.global_prompt), self.scale), labels)
        return common + torch.stack(list(terms.values())).sum()

    def calls(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> list[Call]:
        """Returns the image call, and one of the text calls."""
        count = 1 + len(self.own) + len(self.asked)
        text = self.text_call(f"1 of {count} text calls", self.module.text.initial_prompt(), count)
        return [Call("the image call", partial(self.frozen, images)), text]


class PLANReference(Reference):
    """Stage 1 of a later round: both towers with the client's prompts, and both again with the global ones."""

    module: PLAN

    @property
    def prompt_length(self) -> int:
        """Learned vectors of a text prompt."""
        return self.module.prompted.prompt_length

    def loss(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Returns cross-entropy and divergence from the global prompts."""
        with torch.no_grad():
            teacher = self._logits(images, self.module.pool.globals)
        return distillation_losses(self._logits(images, self.module.pool.own), labels, teacher, self.module.kl_weight)[
            "loss"
        ]

    def calls(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> list[Call]:
        """Returns the text calls and, for a quarter of the images, the image calls."""
        pool, few = self.module.pool, images[: -(-len(images) // 4)]
        times, part = len(images) / len(few), f"{len(few)} of {len(images)} images"
        images_of = partial(self._image, few)
        return [
            self.text_call("text", pool.own["text"]),
            self.text_call("text of the reference", pool.globals["text"], learns=False),
            Call(part, partial(backward, images_of, pool.own["visual"]), times),
            Call(f"{part} for the reference", partial(without_gradient, images_of, pool.globals["visual"]), times),
        ]

    def _text(self, prompts: Tensor) -> Tensor:
        return self.texts(prompts[0], prompts[1:])

    def _image(self, images: Tensor, prompts: Tensor) -> Tensor:
        return reference_images(self.clip, images, prompts)[0]

    def _logits(self, images: Tensor, prompts: Any) -> Tensor:
        return cosine_logits(self._image(images, prompts["visual"]), self._text(prompts["text"]), self.scale)


class ADAPTReference(Reference):
    """A text call for each domain's prompt, of which the client trains its own, and the image tower with its tokens."""

    module: ADAPT

    @property
    def prompt_length(self) -> int:
        """Learned vectors of a text prompt."""
        return self.module.dual.text_encoder.prompt_length

    def loss(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Returns the cross-entropies over classes and over domains."""
        dual, domain = self.module.dual, self.module.domain
        if dual.text is None or dual.visual is None:
            raise ValueError("The reference has prompts in both towers.")
        text = F.normalize(torch.stack([self.texts(prompt) for prompt in dual.text(domain)]), dim=-1)  # [K, C, d]
        image, tokens, scores = reference_images(self.clip, images, torch.stack(dual.visual(domain))[None])
        mixed = torch.einsum("bk,kcd->bcd", (scores / dual.temperature).softmax(dim=-1), text)
        loss = F.cross_entropy(cosine_logits(image, mixed, self.scale), labels)
        return loss + self.module.domain_weight * pairs_correspondence(tokens, text, labels, self.scale)

    def calls(self, images: Tensor, labels: Tensor, constants: dict[str, Tensor]) -> list[Call]:
        """Returns the text calls and, for a quarter of the images, the image call."""
        dual, few = self.module.dual, images[: -(-len(images) // 4)]
        if dual.text is None or dual.visual is None:
            raise ValueError("The reference has prompts in both towers.")
        prompt, others = dual.text.shared[0], len(dual.text.shared) - 1
        tokens = dual.visual.shared[None]
        image = Call(
            f"{len(few)} of {len(images)} images",
            partial(backward, lambda prompts: reference_images(self.clip, few, prompts)[0], tokens),
            len(images) / len(few),
        )
        frozen = self.text_call(f"1 of {others} texts without a gradient", prompt, others, learns=False)
        return [self.text_call("text", prompt), frozen, image]


REFERENCES: dict[str, type[Reference]] = {
    "TRIP": TRIPReference,
    "PromptFL": PromptFLReference,
    "PLAN": PLANReference,
    "ADAPT": ADAPTReference,
    "DiPrompT": DiPrompTReference,
}
