"""Fed-DPT: a text prompt and an image token for each domain; attention on the tokens says how the prompts are mixed.

Paper: Wei et al., "Dual prompt tuning for domain-aware federated learning" (Fed-DPT), arXiv 2310.03103.

Symbols: P_T^k text prompts -> ``dual.text``; [v]_1 .. [v]_n image tokens -> ``dual.visual``; m -> ``prompt_length``;
tau_d -> ``temperature``; alpha -> ``text_momentum``; f_V -> ``image``; f_T^k -> ``text``; w -> ``weights``.
    p(c | x) from cos(f_V, f_T(c)) / tau, Eq. 1        :meth:`.DualPromptLearner.forward`
    f_T^k(c), f_V, w, Eqs. 3-5                         :class:`.DualPrompts`
    f_T(c) = sum_k w_k f_T^k(c), Eq. 6                 :class:`.DualFeatures`
    L = -cos(f_V, f_T(y)), Eqs. 7, 9                   :meth:`FedDPT.training_step`
    P^k <- alpha P^k + (1 - alpha) [P^k], Eq. 8        :class:`.PerDomainPrompts`
    server: P^k of its owner, mean of V, Algorithm 1   :class:`.Slots`, ``FedAvg("uniform")``

Departures:
    * Eq. 7 is printed without its minus; Eq. 9 of the paper's appendix has it.
    * <q_cls, k_j> is divided by the root of a head's width and averaged over heads, as attention has it: undivided
      products over tau_d = 0.1 would make w a maximum.
    * Each f_T^k is normalised before it is mixed, so that no domain weighs more for its length.
    * A domain held out is classified by the same mixture over the source domains; the paper tests seen domains only.
    * Clients of one domain are averaged by their training images; the paper only says averaged.
    * Batches have 32 images; the paper does not say.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Batch
from fedvlp.methods.fed_dpt.base import DualPromptLearner
from fedvlp.methods.fed_dpt.dual_prompts import Components
from fedvlp.utils.ranges import FractionBelowOne, Names, PositiveFloat, PositiveInt


class FedDPT(DualPromptLearner):
    """Mixes the domains' text prompts for each image by the attention that its class token pays to their image tokens.

    Args:
        class_names: The classes, in the order of the labels.
        domains: Names of the source domains, in the order of the clients' domains.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        prompt_length: Number of learned vectors m of a text prompt.
        temperature: Temperature tau_d of the weights over domains, above 0.
        text_momentum: How slowly a client's copies of other domains' text prompts follow the server's: alpha, in
            [0, 1). With 0 they are replaced at once; with none every client trains all text prompts.
        visual_momentum: The same for image tokens, where each is to be trained by its own domain alone. With none
            every client trains all image tokens, and the server averages them.
        components: Which prompts there are: ``domain`` for one text prompt and one image token a domain; ``agnostic``
            for one text prompt, not mixed; ``text`` for that alone; ``visual`` for image tokens alone.
        optimizer: Makes the optimizer of a client's local training.
    """

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        domains: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        prompt_length: PositiveInt = 16,
        temperature: PositiveFloat = 0.1,
        text_momentum: FractionBelowOne | None = 0.99,
        visual_momentum: FractionBelowOne | None = None,
        components: Components = "domain",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=5e-4),
    ) -> None:
        super().__init__(
            class_names=class_names,
            domains=domains,
            clip=clip,
            prompt_length=prompt_length,
            temperature=temperature,
            text_momentum=text_momentum,
            visual_momentum=visual_momentum,
            components=components,
            optimizer=optimizer,
        )
        self.save_hyperparameters()

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns minus the mean cosine of an image with its own class (Eq. 9)."""
        inputs, labels = batch
        cosines = self(inputs) / self.clip.logit_scale
        loss: Tensor = -cosines.gather(1, labels[:, None]).mean()
        self.log("loss", loss)
        return loss
