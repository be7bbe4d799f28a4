"""pFedMoAP: each client mixes its own prompt with other clients' prompts through a personal attention module.

Paper: Luo et al., "Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language Models",
ICLR 2025.

Symbols: P_i, L x D, local expert -> ``local_prompt``; P_j, downloaded non-local experts -> ``experts``; P_g mean prompt
-> ``prompt``; h_c(P) text feature of "[P][class c]."; f image feature; Pool, every n-th dimension, and Attn with 8
heads -> ``gating``; lambda -> ``local_weight``; scale of the attention's products -> ``attention_scale``.
    logits_c = lambda cos(f, h_c(P_i)) / tau + <Pool f, Attn(Pool f, H, H)> / tau,    :meth:`PFedMoAP.forward`,
        with H = Pool h_c(P_i), Pool h_c(P_j) for all j                               :class:`.Gating`
    cross-entropy trains the gating, and P_i starting from P_g                        :meth:`PFedMoAP.start_client`
    server: all P_i, the experts nearest to P_i, the cohort's mean P_g                :class:`.ExpertPool`

As in the released code, a client classifies only by P_i, cos(f, h_c(P_i)) / tau, until it has experts. It gets them
after its first upload. A plain Trainer has only the prompt that it starts from.

Deviations:
    * Experts: The released script sends random ones; fedvlp sends the nearest, as the paper does. The code also removes
      the client from a list of prompts but indexes that list by client number, so a client can get the wrong prompt or
      its own.
    * Order: The released code trains clients one after another, and sends later clients the new prompts of earlier
      clients; fedvlp sends prompts of earlier rounds, so the order of clients does not matter.
    * Evaluation: The released code sends new experts to clients outside the cohort; fedvlp evaluates a client with the
      experts that it trained with.
    * Schedule: The released code advances one schedule with every local epoch of every client; fedvlp's cosine and
      warm-up for P_i count rounds, and the gating's rate is constant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, cosine_logits
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.core.module import HeldOutEvaluation
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, detached
from fedvlp.core.strategies import FedAvg, Strategy
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveFloat, PositiveInt


class PFedMoAP(PromptLearner):
    """A prompt per client, and a personal gating that mixes it with other clients' prompts.

    Args:
        num_experts: Maximum number of mixed prompts, including the client's own.
        prompt_length: Number of learned vectors L of a prompt.
        heads: Number of heads of the gating's attention.
        attention_scale: Factor on the attention's products.
        local_weight: Weight lambda of the logits under the client's own prompt, at least 0.
        gating_lr: Constant learning rate of the gating.
        held_out_evaluation: Classifier for held-out domains: the ``shared`` mean prompt, the ``mean`` of the
            probabilities of all clients' models, or ``each`` client's model in turn.
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
        *,
        num_experts: PositiveInt = 10,
        prompt_length: PositiveInt = 16,
        heads: PositiveInt = 8,
        attention_scale: PositiveFloat = 10.0,
        local_weight: NonNegativeFloat = 0.5,
        gating_lr: PositiveFloat = 0.01,
        held_out_evaluation: HeldOutEvaluation = "shared",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.local_weight = local_weight
        self.gating_lr = gating_lr
        self.held_out_evaluation = held_out_evaluation
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        start = self.text.initial_prompt()  # [L, D]
        self.prompt = nn.Parameter(start.clone(), requires_grad=False)  # as downloaded
        self.local_prompt = nn.Parameter(start.clone())
        self.gating = Gating(self.clip.embed_dim, heads, attention_scale)
        others = min(num_experts, num_clients) - 1
        self.pool = ExpertPool(others, Slots("client", num_clients))
        self.register_buffer("prompts", torch.zeros(num_clients, *start.shape))
        # The next client's download overwrites this buffer, so a client copies its experts to a personal one.
        self.register_buffer("nonlocal_prompts", torch.zeros(others, *start.shape))
        self.register_buffer("experts", start.repeat(others, 1, 1))
        self._features_of_experts = PromptFeatureCache()

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase: the client's prompt fills its slot, and the gating is personal."""
        trained = ("local_prompt", "gating")
        return (Phase("train", train=trained, upload=("prompts",), strategy=self.pool, deploy=("prompt",)),)

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[Any]:
        """Give the gating its own, constant learning rate."""
        gating = {"params": [*self.gating.parameters()], "lr": self.gating_lr, "scheduled": False}
        return [{"params": [self.local_prompt]}, gating]

    def shared_state(self) -> State:
        """Collect the slots of all clients' prompts, and the mean prompt."""
        return super().shared_state() | detached({"prompt": self.prompt})

    def initial_personal_state(self, start: State) -> State:
        """Create the state of a client that never took part: no local prompt and no experts."""
        nothing = {name: torch.zeros_like(start[name]) for name in ("local_prompt", "experts")}
        return start | nothing

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training, from the mean prompt and with the downloaded experts."""
        super().start_client(context)
        self.local_prompt.copy_(self.prompt)
        self.experts.copy_(self.nonlocal_prompts)

    def upload_state(self) -> State:
        """Upload the client's prompt, which fills its slot on the server."""
        return {"prompts": self.local_prompt}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of the client's model, or under the mean prompt if there is no client."""
        features = self.precomputed(inputs)["features"]
        if not self.uses_personal:
            return cosine_logits(features, self.text(self.prompt), self.clip.logit_scale)
        # A client that never took part has no prompt, and uses the server's.
        texts = self.text(torch.where(self.local_prompt.any(), self.local_prompt, self.prompt))
        logits = cosine_logits(features, texts, self.clip.logit_scale)
        with torch.no_grad():
            others = self._features_of_experts("", self.text, self.experts)
        # Missing experts are zero; the client's own prompt is always present.
        present = F.pad(self.experts.flatten(1).any(dim=1), (1, 0), value=True)
        with torch.autocast(features.device.type, enabled=False):
            stack = F.normalize(torch.cat([texts[None], others]).float(), dim=-1)  # [E, C, d]
            mixed = self.gating(F.normalize(features.float(), dim=-1), stack, present)
        both = self.local_weight * logits + self.clip.logit_scale * mixed
        # As in the released code, a client without experts classifies only by its own prompt.
        return torch.where(present[1:].any(), both, logits)


class Gating(nn.Module):
    """Multi-head attention with an image as query, and one class's text features as keys and values.

    Only every n-th dimension of the features is used, so that about 128 are left. Products of queries and keys are
    multiplied by `scale` instead of 1 / sqrt(width of a head).
    """

    def __init__(self, width: int, heads: int, scale: float) -> None:
        super().__init__()
        self.every = max(1, width // 128)
        inner = len(range(0, width, self.every))
        if inner % heads:
            raise UserError(f"Expected heads that divide {inner}, the width of the gating; got {heads}.")
        self.heads = heads
        self.scale = scale
        self.query, self.key, self.value, self.out = (nn.Linear(inner, inner) for _ in range(4))

    def forward(
        self, images: Float[Tensor, "B d"], texts: Float[Tensor, "E C d"], present: Bool[Tensor, "E"]
    ) -> Float[Tensor, "B C"]:
        """Compute the product of each image with its attention output over the experts' features of each class.

        All features have length 1; at least one expert is present.
        """
        thin_images = images[:, :: self.every]
        thin_texts = texts[..., :: self.every]
        queries = self.query(thin_images).unflatten(-1, (self.heads, -1))  # [B, heads, inner / heads]
        keys = self.key(thin_texts).unflatten(-1, (self.heads, -1))  # [E, C, heads, inner / heads]
        values = self.value(thin_texts).unflatten(-1, (self.heads, -1))
        scores = self.scale * torch.einsum("bhi,echi->bche", queries, keys)
        weights = scores.masked_fill(~present, -torch.inf).softmax(-1)
        gathered = torch.einsum("bche,echi->bchi", weights, values).flatten(-2)
        return torch.einsum("bi,bci->bc", thin_images, self.out(gathered))


@dataclass(frozen=True)
class ExpertPool(Strategy):
    """Store of ``prompts`` [K, L, D], one slot per client, and ``prompt`` [L, D], the mean over the last cohort.

    A client downloads the mean and, once its own slot is filled, the ``count`` other prompts nearest to its own. A
    client without a filled slot gets zeros, and zeros also replace missing experts.

    >>> server = ServerState.start({"prompts": torch.zeros(3, 1, 1), "prompt": torch.zeros(1, 1)})
    >>> pool = ExpertPool(1, Slots("client", 3))
    >>> sent = {0: 1.0, 1: 4.0, 2: 6.0}
    >>> updates = [ClientUpdate(Client(i, i, 5), {"prompts": torch.full((1, 1), sent[i])}, 5) for i in sent]
    >>> server = pool.aggregate(server, updates)
    >>> {name: value.flatten().tolist() for name, value in pool.broadcast(server, Client(0, 0, 5)).items()}
    {'prompt': [3.6666667461395264], 'nonlocal_prompts': [4.0]}
    """

    count: int
    slots: Slots
    mean: FedAvg = field(default_factory=FedAvg)

    def broadcast(self, server: ServerState, client: Client) -> State:
        """Select the mean prompt and the client's experts, the nearest first."""
        prompts: Float[Tensor, "K L D"] = server.shared["prompts"]
        lent = prompts.new_zeros(self.count, *prompts.shape[1:])
        filled = prompts.flatten(1).any(dim=1)
        # A client that has sent nothing has no prompt to measure distances from.
        if filled[client.id]:
            filled[client.id] = False
            others = prompts[filled]
            order = (others - prompts[client.id]).flatten(1).norm(dim=1).argsort(stable=True)
            chosen = others[order[: self.count]]
            lent[: len(chosen)] = chosen
        return {"prompt": server.shared["prompt"], "nonlocal_prompts": lent}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fill the participants' slots and average their prompts."""
        server = self.slots.aggregate(server, updates)
        # Each upload is used twice: for its slot and for the mean.
        renamed = [replace(update, state={"prompt": update.state["prompts"]}) for update in updates]
        return self.mean.aggregate(server, renamed)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError if slots are missing."""
        self.slots.check(clients)
