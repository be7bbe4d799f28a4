"""DiPrompT: a prompt shared by all clients, a prompt for each domain, and a query prompt that finds an image's domain.

Paper: Bai et al., "DiPrompT: Disentangled prompt tuning for multiple latent domain generalization in federated
learning", CVPR 2024.

Symbols: V^G, V_m^D, V^Q -> ``global_prompt``, ``domain_prompts``, ``query_prompt``; lambda -> ``domain_weight``; I ->
``features``; text features Z^m -> ``own`` and Z^Q -> ``pairs`` [C, M, d].
    L_G, L_D, Eqs. 1-3; P(y, d | x), L_Q, Eqs. 6, 7   :func:`.domain_terms`, :func:`.query_terms`
    server, Eqs. 4, 5; ensemble, Eq. 8                :meth:`DiPrompT.configure_phases`; :func:`.ensemble_logits`

Deviations:
    * Contrast (Eq. 3): The paper compares prompts, and its denominator has a prompt's product with itself in place of
      the positive pair; fedvlp compares text features per class, with the positive pair in the denominator. The printed
      term is not a loss. The other domains' features get no gradient.
    * Beta average (Eq. 5): The paper's formula lacks a factor and is one round off; fedvlp takes the mean over rounds,
      weighted by Beta densities.
    * Query loss (Eq. 7): The paper's loss is 0 with gradient 0 at the start; fedvlp adds -log sum_m P(y, m | x).
    * KL (Eq. 7): The paper prints a KL of scalars with the new one first; fedvlp takes KL(hat || new) of softmaxes over
      domains, as in distillation. The Q-prompt at the start of the client's round is hatV^Q.
    * Start of the Q-prompt: The paper does not state L; fedvlp uses "a photo of a", then random vectors up to L = 16.
      "with the domain of" is fixed.
    * Upload of the Q-prompt: The paper's cost includes it, its text does not; ``upload_query: false`` follows the text.
    * Ensemble (Eq. 8): Each Z is normalised before mixing. The shares w_m count a negative cosine as 0.
    * Steps: The paper alternates between prompts; fedvlp trains all at once, because each loss reaches only one prompt.
      It reads "T = 1 iteration" as one pass.
    * Known domains: The paper states no loss for Q in this case; fedvlp trains Q by -log P(y, m | x), and only without
      the ensemble, which does not use Q.
    * Without the ensemble: Sec. 4.3.1 takes the D-prompt with the highest w_m; fedvlp lets Q choose it, as in Sec. 3.3.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, DomainTextEncoder, PromptedTextEncoder, cosine_logits
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.slots import IndicatorMean
from fedvlp.core.strategies import ByName, FedAvg, MovingAverage, Strategy, beta_share
from fedvlp.methods.prompts import PromptLearner, distillation_kl, known_domain
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Part = Literal["global_prompt", "domain_prompts", "query_prompt", "contrast", "mse", "kl", "ensemble"]


class DiPrompT(PromptLearner):
    """A global prompt, a prompt for each source domain, and a query prompt that assigns images to domains.

    Args:
        domains: Source domains, in the order of ``Client.domain``.
        rounds: Number of rounds R of the Beta average.
        prompt_length: Number of learned vectors L of each prompt, at least 4.
        domain_weight: Weight lambda of the D-prompts' loss, at least 0.
        beta: Both parameters of the Beta average's density, above 0.
        without: Parts to omit, as in the paper's Table 3: prompts, terms of the loss, or the ensemble. Without
            ``query_prompt``, a handwritten prompt assigns images to domains.
        domain_labels: Whether clients know their domain. A Q-prompt is then learned only without the ensemble, to
            choose a D-prompt for test images; its loss has -log P(y, m | x) with the true m.
        upload_query: Whether the Q-prompt is sent and averaged; otherwise each client keeps its own.
        optimizer: Factory of the optimizer for local training; weight decay would move all D-prompts.
    """

    global_prompt: Tensor | None  # [L, D]
    domain_prompts: Tensor | None  # [M, L, D]
    query_prompt: Tensor | None  # [L, D]

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        rounds: NonNegativeInt = 100,
        prompt_length: PositiveInt = 16,
        domain_weight: NonNegativeFloat = 1.0,
        beta: PositiveFloat = 0.2,
        without: tuple[Part, ...] = (),
        domain_labels: bool = False,
        upload_query: bool = True,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
    ) -> None:
        parts = get_args(Part)
        if set(without) - set(parts) or set(without) >= {"global_prompt", "domain_prompts"}:
            raise UserError(
                f"Expected parts of DiPrompT to leave out ({', '.join(parts)}), but not both global and domain "
                f"prompts; got {', '.join(without)}. Correct --model.without."
            )
        super().__init__(class_names, clip, optimizer)
        self.left_out = set(without)
        self.domains = domains
        self.domain_weight = domain_weight
        self.domain_labels = domain_labels
        self.share = beta_share(beta, rounds)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.domain_text = DomainTextEncoder(self.clip, class_names, domains, prompt_length=prompt_length)
        common, *own = (self.text.initial_prompt() for _ in range(1 + len(domains)))
        start = {
            "global_prompt": common,
            "domain_prompts": torch.stack(own),
            "query_prompt": self.text.initial_prompt("a photo of a"),
        }
        idle: set[str] = {*without}
        if "domain_prompts" in without or (domain_labels and "ensemble" not in without):
            idle.add("query_prompt")  # no part needs it to find a domain
        for name, prompt in start.items():
            self.register_parameter(name, None if name in idle else nn.Parameter(prompt))
        if self.query_prompt is not None and not upload_query:
            # The ensemble does not use the Q-prompt, so it is deployed only without the ensemble.
            if "ensemble" in self.left_out:
                self.personal = ("query_prompt",)
            else:
                self.train_only_personal = ("query_prompt",)
        # Text features of the Q-prompt at the start of the client's round, set in the first step.
        self._before: Tensor | None = None  # hatZ^Q

    def configure_phases(self) -> Sequence[Phase]:
        """Describe one phase, after which the server sends Beta averages of D-prompts and Q-prompt (Eqs. 4, 5)."""
        strategies: dict[str, Strategy] = {
            "global_prompt": FedAvg(),
            "domain_prompts": MovingAverage(IndicatorMean(), self.share, ("domain_prompts",), sends_average=True),
            "query_prompt": MovingAverage(FedAvg(), self.share, ("query_prompt",), sends_average=True),
        }
        train = tuple(name for name in strategies if getattr(self, name) is not None)
        upload = tuple(name for name in train if name not in (*self.personal, *self.train_only_personal))
        return (Phase("train", train, upload, ByName({name: strategies[name] for name in upload})),)

    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training; its hatV^Q is the current Q-prompt."""
        super().start_client(context)
        self._before = None

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of the ensemble (Eq. 8), or without it of the most likely domain's D-prompt."""
        features = self.precomputed(inputs)["features"]
        scale = self.clip.logit_scale
        if self.domain_prompts is None:
            return cosine_logits(features, self.text(self.global_prompt), scale)
        own = self.domain_text.encode_with_domain_prompts(self.domain_prompts)  # [C, M, d]
        if "ensemble" not in self.left_out:
            common = None if self.global_prompt is None else self.text(self.global_prompt)
            return ensemble_logits(features, own, common, scale)
        pairs = self.domain_text.encode_with_prompt(self.query_prompt)  # [C, M, d]
        domains = pair_logits(features, pairs, scale).amax(1).argmax(1)
        return given_domain(pair_logits(features, own, scale), domains)

    def losses(self, inputs: Inputs, labels: Int[Tensor, "B"]) -> dict[str, Tensor]:
        """Compute L_G + lambda L_D + L_Q, without the omitted terms."""
        features = self.precomputed(inputs)["features"]
        scale = self.clip.logit_scale
        terms: dict[str, Tensor] = {}
        if self.global_prompt is not None:
            logits = cosine_logits(features, self.text(self.global_prompt), scale)
            terms["global"] = F.cross_entropy(logits, labels)
        if self.domain_prompts is not None:
            pairs = self.domain_text.encode_with_prompt(self.query_prompt)  # Z^Q, [C, M, d]
            domains = given_class(pair_logits(features, pairs, scale), labels).argmax(1)  # m*
            if self.domain_labels and self.context is not None:
                client_domain = known_domain(self.context.client, "domain_labels", ", or domain_labels: false")
                domains = torch.full_like(domains, client_domain)
            # Only domains with assigned images get a gradient, so that the others stay exactly unchanged.
            own = self.domain_text.encode_with_domain_prompts(self.domain_prompts, learning=domains)  # Z^m, [C, M, d]
            terms |= domain_terms(features, labels, domains, own, self.domain_text.handwritten, scale)
            if self.query_prompt is not None:
                if self._before is None:
                    self._before = pairs.detach()
                labelled = domains if self.domain_labels else None
                terms |= query_terms(features, labels, pairs, self._before, scale, labelled)
        weights = {"domain": self.domain_weight, "contrast": self.domain_weight}
        weighted = [weights.get(name, 1.0) * term for name, term in terms.items() if name not in self.left_out]
        return {"loss": torch.stack(weighted).sum()}


def pair_logits(
    image_features: Float[Tensor, "B d"], features: Float[Tensor, "C M d"], scale: float
) -> Float[Tensor, "B C M"]:
    """Compute CLIP's logits of each image for each pair of a class and a domain."""
    return cosine_logits(image_features, features.flatten(0, 1), scale).view(-1, *features.shape[:2])


def given_class(logits: Float[Tensor, "B C M"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B M"]:
    """Select each image's logits of its class in every domain."""
    return logits[torch.arange(len(labels), device=labels.device), labels]


def given_domain(logits: Float[Tensor, "B C M"], domains: Int[Tensor, "B"]) -> Float[Tensor, "B C"]:
    """Select each image's logits of every class in its domain."""
    return logits[torch.arange(len(domains), device=domains.device), :, domains]


def domain_contrast(features: Float[Tensor, "C M d"], handwritten: Float[Tensor, "C M d"]) -> Float[Tensor, "M"]:
    """Compute each domain's contrast of its handwritten prompt against the other domains' prompts (DiPrompT, Eq. 3).

    It is the mean over classes of -log e^p / (e^p + sum_i e^{n_i}). The cosine p compares the features of the learned
    and the handwritten prompt. The cosines n_i compare the learned prompt with the other domains' features, which get
    no gradient.

    >>> features = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # one class, two domains
    >>> domain_contrast(features, torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))  # log 2, log(1 + 1 / e)
    tensor([0.6931, 0.3133])
    """
    with torch.autocast(features.device.type, enabled=False):
        own = F.normalize(features.float(), dim=-1)
        positive = (own * F.normalize(handwritten.float(), dim=-1)).sum(-1)  # [C, M]
        cosines = torch.einsum("cmd,cnd->cmn", own, own.detach())
        # The diagonal compares a prompt with itself; the positive pair replaces it in the denominator.
        itself = torch.eye(own.shape[1], dtype=torch.bool, device=own.device)
        cosines = torch.where(itself, positive[..., None], cosines)
        return -cosines.log_softmax(-1).diagonal(dim1=1, dim2=2).mean(0)


def domain_terms(
    image_features: Float[Tensor, "B d"],
    labels: Int[Tensor, "B"],
    domains: Int[Tensor, "B"],
    features: Float[Tensor, "C M d"],
    handwritten: Float[Tensor, "C M d"],
    scale: float,
) -> dict[str, Tensor]:
    """Compute the two terms of L_D; an image counts only for the prompt of its domain m* (DiPrompT, Eq. 3).

    `features` are Z_j^m under the domains' learned prompts, `handwritten` under the handwritten prompts.
    """
    logits = given_domain(pair_logits(image_features, features, scale), domains)
    contrast = domain_contrast(features, handwritten)[domains].mean()
    return {"domain": F.cross_entropy(logits, labels), "contrast": contrast}


def query_terms(
    image_features: Float[Tensor, "B d"],
    labels: Int[Tensor, "B"],
    features: Float[Tensor, "C M d"],
    before: Float[Tensor, "C M d"],
    scale: float,
    domains: Int[Tensor, "B"] | None = None,
) -> dict[str, Tensor]:
    """Compute -log sum_m P(y, m | x) and the two regularisers of the Q-prompt (DiPrompT, Eqs. 6, 7).

    If `domains` has the domain m of each image, the first term is -log P(y, m | x). `features` are Z_{j,m}^Q, and
    `before` are the same features under the received Q-prompt.
    """
    logits = pair_logits(image_features, features, scale)
    logits_before = pair_logits(image_features, before, scale)
    # Summing the joint softmax over domains equals a softmax of logsumexp.
    query = F.cross_entropy(logits.logsumexp(-1), labels)
    if domains is not None:
        query = query + F.cross_entropy(given_class(logits, labels), domains)  # P(y | x) P(m | y, x)
    squares = (features.float() - before.float()).square().sum((1, 2))  # sum_m ||Z_m - hatZ_m||^2, [C]
    return {
        "query": query,
        "mse": squares[labels].mean(),
        "kl": distillation_kl(given_class(logits_before, labels), given_class(logits, labels)),
    }


def domain_weights(image_features: Float[Tensor, "B d"], features: Float[Tensor, "C M d"]) -> Float[Tensor, "B M"]:
    """Compute w_m, each domain's best cosine over the classes as a share of the sum over domains (DiPrompT, Eq. 8).

    A negative cosine counts as zero; if none is positive, all domains get the same weight.

    >>> domain_weights(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.6, 0.8], [0.2, 0.96**0.5]]]))
    tensor([[0.7500, 0.2500]])
    """
    best = pair_logits(image_features, features, scale=1.0).amax(1)  # [B, M]
    # Avoid a division by zero; all domains then get the same weight.
    best = best.clamp_min(torch.finfo(torch.float32).tiny)
    return best / best.sum(-1, keepdim=True)


def ensemble_logits(
    image_features: Float[Tensor, "B d"],
    features: Float[Tensor, "C M d"],
    global_features: Float[Tensor, "C d"] | None,
    scale: float,
) -> Float[Tensor, "B C"]:
    """Compute the logits under sum_m w_m Z_j^m + Z_j^G, each Z normalised before (DiPrompT, Eq. 8).

    `global_features` are Z_j^G; without them, only the domains' prompts classify.
    """
    with torch.autocast(image_features.device.type, enabled=False):
        weights = domain_weights(image_features, features)
        mixture = torch.einsum("bm,cmd->bcd", weights, F.normalize(features.float(), dim=-1))
        if global_features is not None:
            mixture = mixture + F.normalize(global_features.float(), dim=-1)
    return cosine_logits(image_features, mixture, scale)
