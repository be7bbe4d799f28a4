"""FaST-PT: image features are moved to other clients' domains; a global prompt is combined with mixed domain prompts.

Paper: Chen et al., "Multi-Modal Style Transfer-based Prompt Tuning for Efficient Federated Domain Generalization",
AAAI 2026.

Symbols: I(x) image feature of length 1 -> ``features``; T(t_k, t_y) text feature of class y in domain k ->
``domain_texts``; T(t_c) text feature of a class name -> ``class_texts``; Q_ij, from the client's domain i to j ->
``transforms``; P^G, P_k^D, L x D -> ``global_prompt``, ``domain_prompts``; f -> ``domain_classifier``; lambda ->
``style_weight``; S_i u I_i, original and moved features -> ``everywhere``.
    L_A = 1 - cos(Q_ij(I(x)) - I(x), T(t_j, t_y) - T(t_i, t_y)), Eq. 1           :meth:`FaSTPT.style_loss`
    L_C = ce(cos(Q_ij(I(x)), T(t_c)) / tau, y), Eq. 2; Q learns lambda L_A + (1 - lambda) L_C, Eq. 3
    L_G + L_F = ce under P^G + ce of f's domains, on S_i u I_i, Eqs. 4, 5, 8     :meth:`FaSTPT.global_loss`, for P^G, f
    L_D = ce under [P^G, P_i^D] + log(1 + e^(sim(P_i^D, P^G) - sim(P_i^D, t_i))) :meth:`FaSTPT.domain_loss`, Eq. 6
    P^N(x) = sum_k f(I(x))_k P_k^D; classes under [P^G, P^N(x)], Eq. 7           :meth:`FaSTPT.forward`
    P^G, f <- mean by images; the server keeps a P^D for each domain             :class:`.FedAvg`, :class:`.Slots`
A plain Trainer has images of all domains, and trains the transforms and the classifier of Eq. 7 at once.

Deviations:
    * Transforms: The paper trains them once, before the first round, for an unstated number of epochs; fedvlp trains
      them in each round, before the prompts. They learn by Adam, as in the paper, and the prompts by the optimizer.
    * Upload: The paper sends a domain's prompt after the last round; fedvlp sends it in each round, to evaluate it.
    * Mixture: The paper calls f's outputs "one-hot", but weights prompts by element; fedvlp takes f's probabilities.
    * Order and start: fedvlp puts P^G first, as in training and in the paper's figure. All P^D start from equal values.
    * Similarity: fedvlp takes sim(P, .) as the mean over classes of cosines between texts under P and texts of the
      domain or under P^G. It uses no temperature, as printed.
    * Temperature of Eq. 2: The paper prints none; fedvlp uses CLIP's tau, as in Eq. 4.
    * Losses: The paper sums L_A; fedvlp averages it like L_C, which the sum would outweigh.
    * Networks: Q has a ReLU and no residual, and f reads moved features normalised to length 1.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits, zero_shot_text_features
from fedvlp.clip.zero_shot import clean_class_name
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import State
from fedvlp.core.strategies import FedAvg, Local
from fedvlp.methods.prompts import BlockLinear, PromptLearner, image_domains, known_domain
from fedvlp.utils.ranges import ClosedFraction, Names, PositiveFloat, PositiveInt


class FaSTPT(PromptLearner):
    """Feature transforms between domains, a global prompt learned from them, and a mixture of one prompt per domain.

    Args:
        domains: Source domains, in the order of ``Client.domain``.
        prompt_length: Number of learned vectors L of a prompt; two prompts precede the class name.
        style_weight: Weight lambda of a transform's direction loss, in [0, 1]; its class loss has 1 - lambda.
        transform_lr: Learning rate of the transforms' Adam, which has a weight decay of 0.05.
        classifier_lr: Learning rate of the domain classifier.
        optimizer: Factory of the optimizer for prompts and classifier.
    """

    train_only_personal = ("transforms",)
    needs_domains = True
    class_texts: Tensor  # [C, d]
    domain_texts: Tensor  # [M, C, d]

    def __init__(
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 4,
        style_weight: ClosedFraction = 0.5,
        transform_lr: PositiveFloat = 0.001,
        classifier_lr: PositiveFloat = 0.01,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.005),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.style_weight = style_weight
        self.transform_lr = transform_lr
        self.classifier_lr = classifier_lr
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.joint_text = PromptedTextEncoder(self.clip, class_names, prompt_length=2 * prompt_length)
        self.global_prompt = nn.Parameter(self.text.initial_prompt())  # [L, D]
        # Start from equal values: a mixture of prompts is a useful prompt only if they are close to each other.
        self.domain_prompts = nn.Parameter(self.text.initial_prompt().repeat(len(domains), 1, 1))  # [M, L, D]
        width = self.clip.embed_dim
        self.domain_classifier = nn.Linear(width, len(domains))
        narrow = BlockLinear(len(domains), width, width // 2)
        self.transforms = nn.Sequential(narrow, nn.ReLU(), BlockLinear(len(domains), width // 2, width))
        templates = [f"a {clean_class_name(domain)} of a {{}}" for domain in domains]
        texts = torch.stack([zero_shot_text_features(self.clip, class_names, template) for template in templates])
        self.register_buffer("domain_texts", texts, persistent=False)
        self.register_buffer("class_texts", zero_shot_text_features(self.clip, class_names, "{}"), persistent=False)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe three phases: transforms, then averaged prompt and classifier, then domain prompts."""
        averaged = ("global_prompt", "domain_classifier")
        own = ("domain_prompts",)
        return (
            Phase("style", ("transforms",), (), Local()),
            Phase("global", averaged, averaged, FedAvg(), download=averaged),
            Phase("domain", own, own, Slots("domain", len(self.domain_prompts)), download=("global_prompt", *own)),
        )

    def configure_optimizers(self) -> Optimizer | None:
        """Create Adam for the transforms, otherwise an optimizer with a separate rate for the domain classifier."""
        phase = None if self.context is None else self.context.phase.name
        if phase == "style":
            return Adam(self.transforms.parameters(), lr=self.transform_lr, weight_decay=0.05)
        if phase == "global" and self.make_optimizer is not None:
            classifier = {"params": [*self.domain_classifier.parameters()], "lr": self.classifier_lr}
            return self.make_optimizer([{"params": [self.global_prompt]}, classifier])
        return super().configure_optimizers()

    def upload_state(self) -> State:
        """Collect the phase's upload; the domain phase sends only the prompt of the client's domain."""
        if self.context is None or self.context.phase.name != "domain":
            return super().upload_state()
        return {"domain_prompts": self.domain_prompts[known_domain(self.context.client, "FaST-PT")]}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under [P^G, P^N(x)] (Eq. 7)."""
        features = self._features(inputs)
        weights = self.domain_classifier(features).softmax(-1)  # [B, M]
        mixed = torch.einsum("bm,mld->bld", weights, self.domain_prompts)
        prompts = torch.cat([self.global_prompt.expand_as(mixed), mixed], dim=1)  # [B, 2L, D]
        return cosine_logits(features, self.joint_text(prompts), self.clip.logit_scale)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Compute the loss of the phase."""
        inputs, labels = batch
        features = self._features(inputs)
        domains = image_domains(inputs, "FaST-PT")
        if self.context is None:
            return self.style_loss(features, labels, domains) + F.cross_entropy(self(inputs), labels)
        if self.context.phase.name == "style":
            return self.style_loss(features, labels, domains)
        if self.context.phase.name == "global":
            return self.global_loss(features, labels, domains)
        return self.domain_loss(features, labels, known_domain(self.context.client, "FaST-PT"))

    def style_loss(
        self, features: Float[Tensor, "B d"], labels: Int[Tensor, "B"], domains: Int[Tensor, "B"]
    ) -> Float[Tensor, ""]:
        """Compute the mean of lambda L_A + (1 - lambda) L_C over images and all domains but their own."""
        moved = self._moved(features)  # [M, B, d]
        directions = self.domain_texts[:, labels] - self.domain_texts[domains, labels]
        direction_loss = 1 - F.cosine_similarity(moved - features, directions, dim=-1)  # [M, B]
        class_loss = self._cross_entropies(moved, self.class_texts, labels)
        others = ~self._is_own(domains)
        losses = others * (self.style_weight * direction_loss + (1 - self.style_weight) * class_loss)
        # With one source domain, there are no other domains.
        loss = losses.sum() / others.sum().clamp_min(1)
        self.log("style_loss", loss)
        return loss

    def global_loss(
        self, features: Float[Tensor, "B d"], labels: Int[Tensor, "B"], domains: Int[Tensor, "B"]
    ) -> Float[Tensor, ""]:
        """Compute L_G + L_F of each image in every domain: unchanged in its own, moved to the others."""
        everywhere = torch.where(self._is_own(domains)[..., None], features, self._moved(features))  # [M, B, d]
        class_loss = self._cross_entropies(everywhere, self.text(self.global_prompt), labels).mean()
        scores = self.domain_classifier(F.normalize(everywhere, dim=-1))  # [M, B, M]
        targets = torch.arange(len(scores), device=scores.device)[:, None].expand(-1, len(labels))
        domain_loss = F.cross_entropy(scores.mT, targets)
        self.log_dict({"class_loss": class_loss, "domain_loss": domain_loss, "loss": class_loss + domain_loss})
        return class_loss + domain_loss

    def domain_loss(self, features: Float[Tensor, "B d"], labels: Int[Tensor, "B"], domain: int) -> Float[Tensor, ""]:
        """Compute L_D of a client's images."""
        own = self.domain_prompts[domain]
        joint = self.joint_text(torch.cat([self.global_prompt, own]))
        cross_entropy = F.cross_entropy(cosine_logits(features, joint, self.clip.logit_scale), labels)
        texts = self.text(own).float()  # [C, d]
        wanted = F.cosine_similarity(texts, self.domain_texts[domain], dim=-1).mean()
        unwanted = F.cosine_similarity(texts, self.text(self.global_prompt).float(), dim=-1).mean()
        contrast = F.softplus(unwanted - wanted)  # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
        self.log_dict({"own_cross_entropy": cross_entropy, "own_contrast": contrast})
        return cross_entropy + contrast

    def _features(self, inputs: Inputs) -> Float[Tensor, "B d"]:
        return F.normalize(self.precomputed(inputs)["features"], dim=-1)

    def _moved(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "M B d"]:
        """Move each image's feature to every domain; callers ignore the result in its own domain."""
        moved: Float[Tensor, "1 M B d"] = self.transforms(features.expand(1, len(self.domain_prompts), -1, -1))
        return moved[0]

    def _is_own(self, domains: Int[Tensor, "B"]) -> Bool[Tensor, "M B"]:
        return torch.arange(len(self.domain_prompts), device=domains.device)[:, None] == domains

    def _cross_entropies(
        self, features: Float[Tensor, "M B d"], texts: Float[Tensor, "C d"], labels: Int[Tensor, "B"]
    ) -> Float[Tensor, "M B"]:
        logits = cosine_logits(features.flatten(0, 1), texts, self.clip.logit_scale)
        return F.cross_entropy(logits, labels.repeat(len(features)), reduction="none").view(features.shape[:2])
