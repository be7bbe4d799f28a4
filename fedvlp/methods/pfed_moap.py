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
    * Experts: the released code indexes a list without the client itself by client numbers, so a client can get the
      wrong expert, or its own, and its script lends random ones; fedvlp lends the nearest.
    * Order: released clients train one after another, and later ones get what earlier ones have just sent; fedvlp lends
      the prompts of earlier rounds.
    * Evaluation: a client is measured with the experts that it trained with; the released code lends new ones to absent
      clients.
    * Schedule: the cosine and the warm-up of P_i are over rounds, and the gating's rate is constant; the released code
      advances one schedule with every local epoch of every client.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    """Learns each client's prompt and how to mix it with those of others.

    Args:
        num_experts: Largest number of prompts that it mixes, its own among them.
        prompt_length: Number of learned vectors L of a prompt.
        heads: Heads of the gating's attention.
        attention_scale: What the attention's products are multiplied by.
        local_weight: Weight lambda of the logits under the client's own prompt, at least 0.
        gating_lr: Learning rate of the gating, which no schedule changes.
        held_out_evaluation: What classifies images of a domain that no client has: the ``shared`` mean prompt alone,
            the ``mean`` of the probabilities of all clients' models, or ``each`` of these in turn.
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
        # What is downloaded would be overwritten by the next client's, so a client keeps its own experts apart.
        self.register_buffer("nonlocal_prompts", torch.zeros(others, *start.shape))
        self.register_buffer("experts", start.repeat(others, 1, 1))
        self._features_of_experts = PromptFeatureCache()

    def configure_phases(self) -> Sequence[Phase]:
        """Return one phase: the own prompt goes to its slot, the gating is personal."""
        return (
            Phase(
                "train", train=("local_prompt", "gating"), upload=("prompts",), strategy=self.pool, deploy=("prompt",)
            ),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Return one optimizer, in which the gating has its own learning rate, whatever the schedule."""
        trained = self.trainable_by_name()
        if self.make_optimizer is None or not trained:
            return super().configure_optimizers()
        prompt = trained.pop("local_prompt")
        gating = {"params": list(trained.values()), "lr": self.gating_lr, "scheduled": False}
        return self.make_optimizer([{"params": [prompt]}, gating])

    def shared_state(self) -> State:
        """Return the slots of all clients' prompts, and the mean prompt."""
        return super().shared_state() | detached({"prompt": self.prompt})

    def initial_personal_state(self, start: State) -> State:
        """Return the state of a client that never took part: no local prompt and no experts."""
        nothing = {name: torch.zeros_like(start[name]) for name in ("local_prompt", "experts")}
        return start | nothing

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training, from the mean prompt and with the experts it downloaded."""
        super().start_client(context)
        self.local_prompt.copy_(self.prompt)
        self.experts.copy_(self.nonlocal_prompts)

    def upload_state(self) -> State:
        """Return the client's prompt, which fills its slot on the server."""
        return {"prompts": self.local_prompt}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of the client's own model, or under the mean prompt where the shared part is alone."""
        features = self.precomputed(inputs)["features"]
        if not self.uses_personal:
            return cosine_logits(features, self.text(self.prompt), self.clip.logit_scale)
        # A client that never took part has no prompt of its own, and takes the server's.
        texts = self.text(torch.where(self.local_prompt.any(), self.local_prompt, self.prompt))
        logits = cosine_logits(features, texts, self.clip.logit_scale)
        with torch.no_grad():
            others = self._features_of_experts("", self.text, self.experts)
        # Places of experts that are not there are zero; the own prompt is always there.
        present = F.pad(self.experts.flatten(1).any(dim=1), (1, 0), value=True)
        with torch.autocast(features.device.type, enabled=False):
            stack = F.normalize(torch.cat([texts[None], others]).float(), dim=-1)  # [E, C, d]
            mixed = self.gating(F.normalize(features.float(), dim=-1), stack, present)
        both = self.local_weight * logits + self.clip.logit_scale * mixed
        # Until it has experts a client classifies by its own prompt alone, as in the released code.
        return torch.where(present[1:].any(), both, logits)


class Gating(nn.Module):
    """Multi-head attention of which an image is the query, and one class's text features are keys and values.

    Features are thinned out first, every few dimensions one is taken, so that about 128 are left. Products of queries
    and keys are multiplied by `scale`, in place of 1 / sqrt(width of a head).
    """

    def __init__(self, width: int, heads: int, scale: float) -> None:
        super().__init__()
        self.every = max(1, width // 128)
        inner = len(range(0, width, self.every))
        if inner % heads:
            raise UserError(f"Expected heads that divide {inner}, the width of the gating, got {heads}.")
        self.heads = heads
        self.scale = scale
        self.query = nn.Linear(inner, inner)
        self.key = nn.Linear(inner, inner)
        self.value = nn.Linear(inner, inner)
        self.out = nn.Linear(inner, inner)

    def forward(
        self, images: Float[Tensor, "B d"], texts: Float[Tensor, "E C d"], present: Bool[Tensor, "E"]
    ) -> Float[Tensor, "B C"]:
        """Compute the product of each image with what it gathers from the experts' features of each class.

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
    """Keeps ``prompts`` [K, L, D], a slot a client, and ``prompt`` [L, D], the mean over the last cohort.

    A client downloads the mean and, once it has a prompt of its own here, those of some others. Who has none yet gets
    zeros, and so does the place of an expert that is not there. ``count`` is how many it gets, those nearest its own.

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
        """Return the mean prompt and those of the client's experts, the nearest first."""
        prompts: Float[Tensor, "K L D"] = server.shared["prompts"]
        lent = prompts.new_zeros(self.count, *prompts.shape[1:])
        filled = prompts.flatten(1).any(dim=1)
        # A client that has sent nothing has no place among the prompts, so nothing is near to it.
        if filled[client.id]:
            filled[client.id] = False
            others = prompts[filled]
            order = (others - prompts[client.id]).flatten(1).norm(dim=1).argsort(stable=True)
            chosen = others[order[: self.count]]
            lent[: len(chosen)] = chosen
        return {"prompt": server.shared["prompt"], "nonlocal_prompts": lent}

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Fill the slots of those who took part and averages their prompts."""
        server = self.slots.aggregate(server, updates)
        # One upload serves twice: it fills its slot, and it is part of the mean.
        renamed = [replace(update, state={"prompt": update.state["prompts"]}) for update in updates]
        return self.mean.aggregate(server, renamed)

    def check(self, clients: Sequence[Client]) -> None:
        """Raise UserError if slots are missing."""
        self.slots.check(clients)
