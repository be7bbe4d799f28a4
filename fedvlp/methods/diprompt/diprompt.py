"""DiPrompT: a prompt for what all clients share, one for each domain, and one that asks which domain an image is of.

Paper: Bai et al., "DiPrompT: Disentangled prompt tuning for multiple latent domain generalization in federated
learning", CVPR 2024.

Symbols: V^G, V_m^D, V^Q -> ``global_prompt``, ``domain_prompts``, ``query_prompt``; lambda -> ``domain_weight``; I ->
``features``; text features Z^m -> ``own`` and Z^Q -> ``pairs`` [C, M, d].
    L_G, L_D, Eqs. 1-3; P(y, d | x), L_Q, Eqs. 6, 7   :func:`.domain_terms`, :func:`.query_terms`
    server, Eqs. 4, 5; ensemble, Eq. 8                :func:`server_strategies`; :func:`.ensemble_logits`

Departures:
    * Eq. 3 compares text features by class, not prompts. Its denominator has the positive pair in place of the prompt
      with itself, so that it is a loss; the other domains' features get no gradient.
    * Eq. 5 lost a factor in print and counts one round off; here it is the mean over rounds by Beta densities.
    * Eq. 7 alone is 0 from the start, with gradient 0; -log sum_m P(y, m | x) is added, so that the Q-prompt moves. Its
      KL is of softmaxes over domains, where the paper has scalars, and runs from hatZ^Q to Z^Q, KL(hat || new), as a
      distillation does, where Eq. 7 prints the new one first; hatV^Q is what the client's round began with.
    * The Q-prompt starts as "a photo of a" and random vectors up to L (16, not said); "with the domain of" stays fixed.
    * The Q-prompt is sent, as the paper's cost implies and its text denies; without ``upload_query`` it is not.
    * Eq. 8 normalises each Z before it mixes them, and a negative cosine weighs nothing.
    * One step trains all prompts, where the paper alternates; "T = 1 iteration" is read as one pass over the images.
    * Clients that know their domain learn Q only without the ensemble, from -log P(y, m | x): the paper names no loss.
    * Without the ensemble, Q chooses the D-prompt as in Sec. 3.3; Sec. 4.3.1 has the highest w_m instead.
    * CLIP is a ViT-B/16 unless named, as for all methods here; the paper's is a ResNet-50, ``RN50``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, DomainTextEncoder, PromptedTextEncoder
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.strategies import ByName, beta_share
from fedvlp.methods._shared.known_domain import known_domain
from fedvlp.methods._shared.prompt_learner import PromptLearner
from fedvlp.methods.diprompt.losses import (
    domain_terms,
    ensemble_logits,
    given_class,
    given_domain,
    pair_logits,
    query_terms,
)
from fedvlp.methods.diprompt.parts import Part, check_options, server_strategies, starting_prompts
from fedvlp.ops import cosine_logits
from fedvlp.utils.ranges import Names, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


class DiPrompT(PromptLearner):
    """Learns a global prompt, a prompt for each source domain, and a prompt that assigns images to domains.

    Args:
        class_names: The classes, in the order of the labels.
        domains: The source domains, in the order of ``Client.domain``.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        rounds: Number of rounds R of the Beta average.
        prompt_length: Number of learned vectors L of each prompt, at least 4.
        domain_weight: Weight lambda of the D-prompts' loss, at least 0.
        beta: Both parameters of the Beta average's density, > 0.
        without: Parts that are left out, as in the paper's Table 3: prompts, terms of the loss, or the ensemble.
            Without ``query_prompt`` a handwritten one assigns images to domains.
        domain_labels: Whether clients know their domain. A Q-prompt is then learned only without the ensemble, to
            choose a D-prompt for test images; its loss has -log P(y, m | x) with the true m.
        upload_query: Whether the Q-prompt is sent and averaged; else each client keeps its own.
        optimizer: Makes the optimizer of a client's local training; weight decay would move all D-prompts.
    """

    global_prompt: Tensor | None  # [L, D]
    domain_prompts: Tensor | None  # [M, L, D]
    query_prompt: Tensor | None  # [L, D]

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        rounds: NonNegativeInt = 100,
        prompt_length: PositiveInt = 16,
        domain_weight: NonNegativeFloat = 1.0,
        beta: PositiveFloat = 0.2,
        without: tuple[Part, ...] = (),
        domain_labels: bool = False,
        upload_query: bool = True,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
    ) -> None:
        left_out = check_options(without)
        super().__init__(class_names, clip, optimizer)
        self.save_hyperparameters()
        self.left_out = left_out
        self.domains = domains
        self.domain_weight = domain_weight
        self.domain_labels = domain_labels
        self.share = beta_share(beta, rounds)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.domain_text = DomainTextEncoder(self.clip, class_names, domains, prompt_length=prompt_length)
        for name, prompt in starting_prompts(self.text, len(domains)).items():
            self.register_parameter(name, prompt if self._trains(name) else None)
        if self.query_prompt is not None and not upload_query:
            # the ensemble does without the Q-prompt, so it is deployed only where there is none
            if "ensemble" in left_out:
                self.personal = ("query_prompt",)
            else:
                self.train_only_personal = ("query_prompt",)
        self._before: Tensor | None = None  # hatZ^Q

    def _trains(self, name: str) -> bool:
        """Whether a prompt is part of the method; the Q-prompt is idle where nothing asks it for a domain."""
        if name in self.left_out:
            return False
        asks = not self.domain_labels or "ensemble" in self.left_out
        return name != "query_prompt" or (asks and "domain_prompts" not in self.left_out)

    def configure_phases(self) -> Sequence[Phase]:
        """Returns one phase, after which D-prompts and the Q-prompt go out as their Beta averages (Eqs. 4, 5)."""
        strategies = server_strategies(self.share)
        train = tuple(name for name in strategies if getattr(self, name) is not None)
        upload = tuple(name for name in train if name not in (*self.personal, *self.train_only_personal))
        return (Phase("train", train, upload, ByName({name: strategies[name] for name in upload})),)

    def start_client(self, context: RoundContext) -> None:
        """Prepares for one client's local training, in which hatV^Q is what the Q-prompt is now."""
        super().start_client(context)
        self._before = None

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits of the ensemble (Eq. 8), or without it of the D-prompt of the likeliest domain."""
        features = self.constants(inputs)["features"]
        scale = self.clip.logit_scale
        if self.domain_prompts is None:
            return cosine_logits(features, self.text(self.global_prompt), scale)
        own = self.domain_text.under_each(self.domain_prompts)  # [C, M, d]
        if "ensemble" not in self.left_out:
            common = None if self.global_prompt is None else self.text(self.global_prompt)
            return ensemble_logits(features, own, common, scale)
        pairs = self.domain_text.under_one(self.query_prompt)  # [C, M, d]
        domains = pair_logits(features, pairs, scale).amax(1).argmax(1)
        return given_domain(pair_logits(features, own, scale), domains)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns L_G + lambda L_D + L_Q, without the terms that are left out."""
        inputs, labels = batch
        features = self.constants(inputs)["features"]
        terms: dict[str, Tensor] = {}
        if self.global_prompt is not None:
            logits = cosine_logits(features, self.text(self.global_prompt), self.clip.logit_scale)
            terms["global"] = F.cross_entropy(logits, labels)
        if self.domain_prompts is not None:
            terms |= self._terms_of_domains(features, labels, self.domain_prompts)
        weights = {"domain": self.domain_weight, "contrast": self.domain_weight}
        kept = [weights.get(name, 1.0) * term for name, term in terms.items() if name not in self.left_out]
        loss = torch.stack(kept).sum()
        self.log("loss", loss)
        return loss

    def _terms_of_domains(
        self, features: Float[Tensor, "B d"], labels: Int[Tensor, "B"], domain_prompts: Float[Tensor, "M L D"]
    ) -> dict[str, Tensor]:
        """The terms of L_D and L_Q, by name."""
        scale = self.clip.logit_scale
        pairs = self.domain_text.under_one(self.query_prompt)  # Z^Q, [C, M, d]
        domains = given_class(pair_logits(features, pairs, scale), labels).argmax(1)  # m*
        if self.domain_labels and self.context is not None:
            of_client = known_domain(self.context.client, "domain_labels", ", or domain_labels: false")
            domains = torch.full_like(domains, of_client)
        own = self.domain_text.under_each(domain_prompts, learning=domains)  # Z^m, [C, M, d]
        terms = domain_terms(features, labels, domains, own, self.domain_text.handwritten, scale)
        if self.query_prompt is not None:
            if self._before is None:
                self._before = pairs.detach()
            known = domains if self.domain_labels else None
            terms |= query_terms(features, labels, pairs, self._before, scale, known)
        return terms
