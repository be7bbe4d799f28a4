"""Local training steps as in the papers' released code, written from their description.

Each step has one text call per prompt with whole sequences, runs both image towers on every batch, and caches nothing.
Identical calls are computed once, and images pass a tower in one batch. Losses come from the library, where other tests
compare them with the papers' equations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reference import Call, Reference, backward, train, without_gradient
from benchmarks.reference_towers import reference_images
from benchmarks.steps import StepBatch
from fedvlp.clip import CLIP, cosine_logits
from fedvlp.methods.adapt import ADAPT, pairs_correspondence
from fedvlp.methods.diprompt import DiPrompT, domain_terms, query_terms
from fedvlp.methods.plan import PLAN
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.prompts import distillation_losses
from fedvlp.methods.trip.trip import TRIP


class TRIPReference(Reference):
    """One text call per image, and two passes of one tower for the features of student and teacher."""

    module: TRIP

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropy and the divergence from zero-shot CLIP."""
        features = self.frozen(batch.images)
        # The released code has separate image towers for teacher and student.
        teacher_features = self.frozen(batch.images)
        teacher = cosine_logits(teacher_features, self.module.teacher.text_features, self.scale)
        logits = []
        for feature, weights in zip(features, batch.constants["train_weights"], strict=True):
            prompt = torch.einsum("e,eld->ld", weights, self.module.experts)
            logits.append(cosine_logits(feature[None], self.texts(prompt), self.scale))
        return distillation_losses(torch.cat(logits), batch.labels, teacher, self.module.kl_weight)["loss"]

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the step for the first two images; for many classes, the two image calls and one text call."""
        batch_size = len(batch.images)
        if len(self.texts) < 100:
            return [Call(f"2 of {batch_size} images", partial(train, self, batch.first(2)), batch_size / 2)]
        image = Call("an image call", partial(self.frozen, batch.images), 2)
        return [image, self.text_call(f"1 of {batch_size} text calls", self.module.experts[0], batch_size)]


class PromptFLReference(Reference):
    """One text call and one image call."""

    module: PromptFL

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropy."""
        logits = cosine_logits(self.frozen(batch.images), self.texts(self.module.prompt), self.scale)
        return F.cross_entropy(logits, batch.labels)

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the two calls."""
        images_call = Call("the image call", partial(self.frozen, batch.images))
        return [images_call, self.text_call("the text call", self.module.prompt)]


class DiPrompTReference(Reference):
    """Text calls for the global prompt, each domain's prompt, and the query prompt with each domain's name."""

    module: DiPrompT

    def __init__(self, module: DiPrompT, cut: bool) -> None:
        super().__init__(module, cut)
        self.domains: list[str] = module.hparams["domains"]
        names = module.class_names
        self.own = []
        self.asked = []
        for domain in self.domains:
            self.own.append(self.text([f"{domain} {name}" for name in names]))
            self.asked.append(self.text([f"{name} with the domain of {domain}" for name in names]))

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute L_G + lambda L_D + L_Q of a client's first step."""
        module = self.module
        labels = batch.labels
        features = self.frozen(batch.images)
        if module.global_prompt is None or module.domain_prompts is None or module.query_prompt is None:
            raise ValueError("The reference has all three kinds of prompts.")
        pairs = torch.stack([text(module.query_prompt) for text in self.asked], dim=1)  # [C, M, d]
        logits = cosine_logits(features, pairs.flatten(0, 1), self.scale).view(len(labels), *pairs.shape[:2])
        # The query prompt's best domain for the image's own class selects the domain prompt.
        domains = logits[torch.arange(len(labels), device=labels.device), labels].argmax(dim=1)
        own = torch.stack([text(prompt) for text, prompt in zip(self.own, module.domain_prompts, strict=True)], dim=1)
        terms = domain_terms(features, labels, domains, own, module.domain_text.handwritten, self.scale)
        terms = {name: module.domain_weight * term for name, term in terms.items()}
        terms |= query_terms(features, labels, pairs, pairs.detach(), self.scale)
        common = F.cross_entropy(cosine_logits(features, self.texts(module.global_prompt), self.scale), labels)
        return common + torch.stack(list(terms.values())).sum()

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the image call, and one of the text calls."""
        count = 1 + len(self.own) + len(self.asked)
        prompt = self.module.text.initial_prompt().to(batch.images.device)
        text = self.text_call(f"1 of {count} text calls", prompt, count)
        return [Call("the image call", partial(self.frozen, batch.images)), text]


class PLANReference(Reference):
    """Stage 1 of a later round: both towers with the client's prompts, and both again with the global prompts."""

    module: PLAN

    @property
    def prompt_length(self) -> int:
        """Number of learned vectors of a text prompt."""
        return self.module.prompted.prompt_length

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropy and the divergence from the global prompts."""
        with torch.no_grad():
            teacher = self._logits(batch.images, self.module.pool.globals)
        logits = self._logits(batch.images, self.module.pool.own)
        return distillation_losses(logits, batch.labels, teacher, self.module.kl_weight)["loss"]

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the text calls and, for a quarter of the images, the image calls."""
        pool = self.module.pool
        few = quarter(batch.images)
        times = len(batch.images) / len(few)
        part = f"{len(few)} of {len(batch.images)} images"
        encode = partial(image_features, self.clip, few)
        return [
            self.text_call("text", pool.own["text"]),
            self.text_call("text of the reference", pool.globals["text"], learns=False),
            Call(part, partial(backward, encode, pool.own["visual"]), times),
            Call(f"{part} for the reference", partial(without_gradient, encode, pool.globals["visual"]), times),
        ]

    def _logits(self, images: Tensor, prompts: Any) -> Tensor:
        image = image_features(self.clip, images, prompts["visual"])
        text = self.texts(prompts["text"][0], prompts["text"][1:])
        return cosine_logits(image, text, self.scale)


class ADAPTReference(Reference):
    """Text calls for all domains' prompts, with one of them trained, and an image call with the client's tokens."""

    module: ADAPT

    @property
    def prompt_length(self) -> int:
        """Number of learned vectors of a text prompt."""
        return self.module.text_encoder.prompt_length

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropies over classes and over domains."""
        stacks = self.module.stacks
        domain = self.module.domain
        text = F.normalize(torch.stack([self.texts(prompt) for prompt in stacks["text"](domain)]), dim=-1)  # [K, C, d]
        found = reference_images(self.clip, batch.images, torch.stack(stacks["visual"](domain))[None])
        mixed = torch.einsum("bk,kcd->bcd", (found.scores / self.module.temperature).softmax(dim=-1), text)
        loss = F.cross_entropy(cosine_logits(found.features, mixed, self.scale), batch.labels)
        return loss + self.module.domain_weight * pairs_correspondence(found.tokens, text, batch.labels, self.scale)

    def calls(self, batch: StepBatch) -> list[Call]:
        """List the text calls and, for a quarter of the images, the image call."""
        stacks = self.module.stacks
        few = quarter(batch.images)
        prompt = stacks["text"].shared[0]
        others = len(stacks["text"].shared) - 1
        image = Call(
            f"{len(few)} of {len(batch.images)} images",
            partial(backward, partial(image_features, self.clip, few), stacks["visual"].shared[None]),
            len(batch.images) / len(few),
        )
        frozen = self.text_call(f"1 of {others} texts without a gradient", prompt, others, learns=False)
        return [self.text_call("text", prompt), frozen, image]


def quarter(images: Tensor) -> Tensor:
    """Take the first quarter of the images [B, 3, V, V], rounded up."""
    return images[: -(-len(images) // 4)]


def image_features(clip: CLIP, images: Tensor, prompts: Tensor) -> Tensor:
    """Compute features [B, d] of images [B, 3, V, V] with prompts [J, L, W] for the first J blocks."""
    return reference_images(clip, images, prompts).features


REFERENCES: dict[str, type[Reference]] = {
    "TRIP": TRIPReference,
    "PromptFL": PromptFLReference,
    "PLAN": PLANReference,
    "ADAPT": ADAPTReference,
    "DiPrompT": DiPrompTReference,
}
