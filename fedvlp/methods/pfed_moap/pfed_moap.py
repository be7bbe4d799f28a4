"""pFedMoAP: each client mixes a prompt of its own with those of other clients, by attention that it learns for itself.

Paper: Luo et al., "Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language Models",
ICLR 2025.

Symbols: P_i, L x D, local expert -> ``local_prompt``; P_j, non-local experts, as downloaded -> ``experts``; P_g mean
prompt -> ``prompt``; h_c(P) text feature of "[P][class c]."; f image feature; Pool, every few dimensions one, and Attn
of 8 heads -> ``gating``; lambda -> ``local_weight``; scale of the attention's products -> ``attention_scale``.
    logits_c = lambda cos(f, h_c(P_i)) / tau + <Pool f, Attn(Pool f, H, H)> / tau,    :meth:`PFedMoAP.forward`,
        with H = Pool h_c(P_i), Pool h_c(P_j) for all j                               :class:`.Gating`
    cross-entropy trains P_i and the gating, P_i from P_g                             :meth:`PFedMoAP.start_client`
    server: all P_i, the experts nearest to P_i, the cohort's mean P_g                :class:`.ExpertPool`

A client classifies by P_i alone, cos(f, h_c(P_i)) / tau, until it has experts, as in the released code: in the round of
its first upload nobody is near it yet. A plain Trainer has nobody's prompts but the one it starts from.

Departures:
    * On a domain that no client has, P_g classifies alone, as PromptFL's prompt; ``unseen: mean`` and ``each`` take the
      clients' own models instead. The paper measures domains that clients have.
    * The released code takes places in a list without the client itself for clients, so that from its own place on it
      gets the one before, at times itself. Here experts are the nearest.
    * A client is measured with the experts that it trained with; the released code lends new ones to those who did not
      take part in a round.
    * The cosine schedule of P_i is left to ``trainer.local.schedule``, which then holds for the gating as well; no
      augmentation, momentum or weight decay, as with PromptFL.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder
from fedvlp.clip.text.prompt_cache import PromptFeatureCache
from fedvlp.core.module import Unseen
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State, detached
from fedvlp.core.strategies import Slots
from fedvlp.methods._shared.personal_prompt_learner import PersonalPromptLearner
from fedvlp.methods.pfed_moap.expert_pool import ExpertPool, Selection
from fedvlp.methods.pfed_moap.gating import Gating
from fedvlp.ops import cosine_logits
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class PFedMoAP(PersonalPromptLearner):
    """Learns each client's prompt and how to mix it with those of others.

    Args:
        class_names: The classes, in the order of the labels.
        num_clients: Number of all clients K; the command line takes it from the data.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        selection: Whose prompts a client gets: the ``nearest`` to its own, or ``random`` ones.
        num_experts: Largest number of prompts that it mixes, its own among them.
        prompt_length: Number of learned vectors L of a prompt.
        heads: Heads of the gating's attention.
        attention_scale: What the attention's products are multiplied by.
        local_weight: Weight lambda of the logits under the client's own prompt, at least 0.
        gating_lr: Learning rate of the gating.
        unseen: What classifies images of a domain that no client has: the ``shared`` mean prompt alone, the ``mean`` of
            the probabilities of all clients' models, or ``each`` of these in turn.
        optimizer: Makes the optimizer of a client's local training.
    """

    personal = ("local_prompt", "gating", "experts")
    prompts: Tensor
    nonlocal_prompts: Tensor
    experts: Tensor

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        selection: Selection = "nearest",
        num_experts: PositiveInt = 10,
        prompt_length: PositiveInt = 16,
        heads: PositiveInt = 8,
        attention_scale: PositiveFloat = 10.0,
        local_weight: NonNegativeFloat = 0.5,
        gating_lr: PositiveFloat = 0.01,
        unseen: Unseen = "shared",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.002),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.save_hyperparameters()
        self.local_weight = local_weight
        self.gating_lr = gating_lr
        self.unseen = unseen
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        start = self.text.initial_prompt()  # [L, D]
        self.set_prompts(start)
        self.gating = Gating(self.clip.embed_dim, heads, attention_scale)
        others = min(num_experts, num_clients) - 1
        self.pool = ExpertPool(others, selection, Slots("client", num_clients))
        self.register_buffer("prompts", torch.zeros(num_clients, *start.shape))
        self.register_buffer("nonlocal_prompts", torch.zeros(others, *start.shape))
        self.register_buffer("experts", start.repeat(others, 1, 1))  # kept apart from those of the next download
        self._features_of_experts = PromptFeatureCache()

    def configure_phases(self) -> Sequence[Phase]:
        """Returns one phase: the own prompt to its slot, the gating stays."""
        return (Phase("train", train=("local_prompt", "gating"), upload=("prompts",), strategy=self.pool),)

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Returns one optimizer, in which the gating has its own learning rate."""
        trained = self.trainable_by_name()
        if self.make_optimizer is None or not trained:
            return super().configure_optimizers()
        prompt = trained.pop("local_prompt")
        return self.make_optimizer([{"params": [prompt]}, {"params": list(trained.values()), "lr": self.gating_lr}])

    def shared_state(self) -> State:
        """Returns the slots of all clients' prompts, and the mean prompt."""
        return super().shared_state() | detached({"prompt": self.prompt})

    def initial_personal_state(self, start: State) -> State:
        """Returns what a client that never took part has: no prompt of its own and no experts."""
        return super().initial_personal_state(start) | {"experts": torch.zeros_like(start["experts"])}

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepares for one client's local training, from the mean prompt and with the experts it downloaded."""
        super().start_client(context)
        self.experts.copy_(self.nonlocal_prompts)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits of the client's own model, or under the mean prompt where the shared part is alone."""
        features = self.constants(inputs)["features"]
        if not self.uses_personal:
            return cosine_logits(features, self.text(self.prompt), self.clip.logit_scale)
        texts = self.text(self.own_prompt())
        logits = cosine_logits(features, texts, self.clip.logit_scale)
        with torch.no_grad():
            others = self._features_of_experts("", self.text, self.experts)
        present = F.pad(self.experts.flatten(1).any(dim=1), (1, 0), value=True)
        with torch.autocast(features.device.type, enabled=False):
            stack = F.normalize(torch.cat([texts[None], others]).float(), dim=-1)  # [E, C, d]
            mixed = self.gating(F.normalize(features.float(), dim=-1), stack, present)
        both = self.local_weight * logits + self.clip.logit_scale * mixed
        return torch.where(present[1:].any(), both, logits)
