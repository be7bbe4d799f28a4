"""PLAN: deep prompts in both towers, learned by each client, then mixed by aggregators that all clients train.

Paper: Gong et al., "Federated domain generalization via prompt learning and aggregation" (PLAN).

Symbols: T_k, V_k -> ``pool.own``; {T_k}, {V_k} -> ``pool.clients``; T_g, V_g -> ``pool.globals``; A_t, A_v with q, phi,
psi -> ``pool.aggregators``; lambda -> ``kl_weight``; r -> ``reduction``.
    p(c | x) with prompts in both towers, Eqs. 2-6, 8    :class:`.DeepPromptedCLIP`
    stage 1: CE + lambda KL(p_g || p_k), Eqs. 7-10       :meth:`PLAN.training_step`, :meth:`PLAN.reference`
    T_g = A_t({T_k}), V_g = A_v({V_k}), Eqs. 11-13       :class:`.PromptAttention`
    stage 2: CE of p_g trains A_t and A_v, Eqs. 14-16    :class:`.PromptPool`

The mixture ignores the empty slot of a client that never took part; the client starts from its own random prompts. A
plain Trainer has no clients: it trains stage 1 against zero-shot CLIP, and T_g, V_g are the trained prompts.

Deviations:
    * Aggregators: The paper states neither r nor the shape and scale of q; fedvlp uses r = 8, nearest to the paper's
      cost, and <q, mean of phi over tokens> / sqrt(width). The paper mixes psi(T_k); fedvlp mixes T_k + psi(T_k) with a
      psi that starts at zero, so that the first mixture is nearly the mean.
    * Released aggregator: The released code mixes by a transformer with 81.9 M parameters. As an option, fedvlp does
      the same without these defects: The text aggregator is never trained. After the first round, the local loss does
      not reach the prompts, and stage 1 trains the visual aggregator, because the reference has a gradient. Mixed-up
      names leave 4 of 72 slots stale (11 of 120 for DomainNet).
    * First reference: The paper does not state its templates; fedvlp uses 60, as the released code does.
    * Optimizer: The released code's SGD has momentum 0.9 and weight decay 5e-4 (``plan_released``); fedvlp's has
      neither, because the paper mentions neither.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.func import functional_call

from fedvlp.clip import CLIP, CLIPSpec, ZeroShotClassifier
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import State, detached, select
from fedvlp.core.strategies import FedAvg, ServerComputed
from fedvlp.methods.prompts import (
    BlockLinear,
    DeepPromptedCLIP,
    PromptLearner,
    Prompts,
    distillation_losses,
    initial_prompt,
)
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt, Templates

Aggregator = Literal["attention", "attention_over_clients"]


class PLAN(PromptLearner):
    """Deep prompts of each client, mixed into one global set by trained aggregators.

    Args:
        prompt_length: Number of learned vectors in each block's prompt.
        depth: Number of first blocks that have their own prompts, in both towers; all blocks if null.
        kl_weight: Weight lambda of the divergence from the reference, at least 0.
        templates: Number of CLIP's templates averaged for the first round's zero-shot reference, in [1, 80].
        first_round_reference: Whether the first round has a reference.
        aggregator: The paper's ``attention``, or the released code's ``attention_over_clients``.
        reduction: Reduction r of the paper's aggregators: phi and psi have width / r hidden units.
        aggregate_text: Whether an aggregator mixes the text prompts; otherwise they are averaged.
        aggregate_visual: Whether an aggregator mixes the visual prompts; otherwise they are averaged.
    """

    needs_images = True
    train_only_personal = ("pool.own",)

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 8,
        depth: PositiveInt | None = None,
        kl_weight: NonNegativeFloat = 1.0,
        templates: Templates = 60,
        first_round_reference: bool = True,
        aggregator: Aggregator = "attention",
        reduction: PositiveInt = 8,
        aggregate_text: bool = True,
        aggregate_visual: bool = True,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.0015),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.kl_weight = kl_weight
        self.first_round_reference = first_round_reference
        self.teacher = ZeroShotClassifier(self.clip, class_names, templates)
        self.prompted = DeepPromptedCLIP(self.clip, class_names, prompt_length)
        has_aggregator = {"text": aggregate_text, "visual": aggregate_visual}
        aggregated = [kind for kind, wanted in has_aggregator.items() if wanted]
        self.pool = PromptPool(self.prompted.initial_prompts(depth), num_clients, aggregator, reduction, aggregated)

    def configure_phases(self) -> Sequence[Phase]:
        """Describe stage 1, which trains prompts, and stage 2, which trains the aggregators if any (Eq. 16)."""
        own, clients, shared, aggregators = (f"pool.{part}" for part in ("own", "clients", "globals", "aggregators"))
        slots = Slots("client", len(self.pool.clients["text"]))
        stages = [Phase("prompts", train=(own,), upload=(clients,), strategy=slots, download=(shared,))]
        if len(self.pool.aggregators):
            averaged = FedAvg("uniform")
            download = (clients, aggregators)
            stages.append(Phase("aggregators", (aggregators,), (aggregators,), averaged, download=download))
        # After the last stage, the server has everything that the global prompts depend on.
        last = replace(stages[-1], strategy=ServerComputed(stages[-1].strategy, self.make_globals), deploy=(shared,))
        return (*stages[:-1], last)

    def make_globals(self, state: State) -> State:
        """Compute the global prompts from the server's tensors (Eqs. 11-13)."""
        in_pool = {name.removeprefix("pool."): value for name, value in select(state, ("pool",)).items()}
        return {f"pool.globals.{kind}": prompts for kind, prompts in functional_call(self.pool, in_pool).items()}

    def shared_state(self) -> State:
        """Collect the tensors that the phases upload, and the global prompts that the server computes from them."""
        return super().shared_state() | detached(select(self.state_dict(), ("pool.globals",)))

    def initial_personal_state(self, start: State) -> State:
        """Draw random prompts for a client that never took part (Section IV-B)."""
        return {name: initial_prompt(prompts.shape) for name, prompts in start.items()}

    def upload_state(self) -> State:
        """Upload the client's prompts, for its slot, after stage 1 and its aggregators after stage 2."""
        if self._aggregates:
            return super().upload_state()
        return detached({f"pool.clients.{kind}": prompts for kind, prompts in self.pool.own.items()})

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under the global prompts (Eq. 8)."""
        return self.prompted.logits(self.precomputed(inputs)["images"], self.pool.globals)

    def local_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under the client's own prompts in stage 1, under the aggregated prompts in stage 2."""
        prompts = self.pool.aggregate() if self._aggregates else self.pool.own
        return self.prompted.logits(self.precomputed(inputs)["images"], prompts)

    @torch.no_grad()
    def reference(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"] | None:
        """Compute the logits of p_g, or of zero-shot CLIP in the first round; None without a reference."""
        # Before the first aggregation, there are no global prompts to distil from.
        first = self.context is None or self.context.round == 0
        if self.kl_weight == 0 or (first and not self.first_round_reference):
            return None
        if first:
            return self.teacher(self.clip.encode_image(images))
        return self.prompted.logits(images, self.pool.globals)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Compute the loss of stage 1 (Eq. 10) or of stage 2 (Eqs. 14, 15)."""
        inputs, labels = batch
        images = self.precomputed(inputs)["images"]
        if self._aggregates:
            loss = F.cross_entropy(self.prompted.logits(images, self.pool.aggregate()), labels)
            self.log("aggregation_loss", loss)
            return loss
        logits = self.prompted.logits(images, self.pool.own)
        reference = self.reference(images)
        if reference is None:
            losses = {"loss": F.cross_entropy(logits, labels)}
        else:
            losses = distillation_losses(logits, labels, reference, self.kl_weight)
        self.log_dict(losses)
        return losses["loss"]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Copy the own prompts to the global prompts if there is no federation."""
        if self.context is None:
            with torch.no_grad():
                for kind, prompts in self.pool.own.items():
                    self.pool.globals[kind].copy_(prompts)

    @property
    def _aggregates(self) -> bool:
        return self.context is not None and self.context.phase.name == "aggregators"


class PromptPool(nn.Module):
    """A client's own prompts, a slot for each client's prompts, and the global prompts aggregated from the slots.

    A slot is empty (all zeros) until its client has sent prompts; only filled slots are aggregated. Own and global
    prompts start from equal values. Kinds of prompts (``text``, ``visual``) not in ``aggregated`` are averaged.
    """

    def __init__(
        self, start: Prompts, num_clients: int, aggregator: Aggregator, reduction: int, aggregated: Collection[str]
    ) -> None:
        super().__init__()
        self.own = nn.ParameterDict()
        self.clients = nn.ParameterDict()
        self.globals = nn.ParameterDict()
        self.aggregators = nn.ModuleDict()
        for kind, prompts in start.items():
            self.own[kind] = nn.Parameter(prompts.clone())
            self.clients[kind] = nn.Parameter(torch.zeros(num_clients, *prompts.shape), requires_grad=False)
            self.globals[kind] = nn.Parameter(prompts.clone(), requires_grad=False)
        for kind in aggregated:
            blocks = start[kind].shape[0]
            width = start[kind].shape[-1]
            if aggregator == "attention":
                self.aggregators[kind] = PromptAttention(blocks, width, reduction)
            else:
                self.aggregators[kind] = AttentionOverClients(blocks, width)

    def aggregate(self) -> dict[str, Tensor]:
        """Aggregate the filled slots into global prompts, differentiably (PLAN, Eqs. 11-13)."""
        globals_: dict[str, Tensor] = {}
        for kind, stack in self.clients.items():  # [K, J, L, width]
            # Slots of clients that never sent prompts are zero and would pull the mixture towards zero.
            filled = stack[stack.flatten(1).any(dim=1)]
            globals_[kind] = self.aggregators[kind](filled) if kind in self.aggregators else filled.mean(dim=0)
        return globals_

    forward = aggregate  # the server calls it with its own tensors


class PromptAttention(nn.Module):
    """A mixture of the clients' prompts, weighted by a learned query.

    The weights are a_k = softmax_k(<q, mean of phi(T_k) over tokens> / sqrt(width)) (Eq. 12). The mixture is T = sum_k
    a_k (T_k + psi(T_k)) (Eq. 13). Prompts start small, so the first weights are equal to within a percent. The last
    layer of psi starts at zero, so the first mixture is nearly the mean. The query starts at random, because a zero
    query would give phi no gradient. The last bias of phi shifts all scores equally and has no effect, but the paper's
    perceptron has it.

    The perceptrons phi and psi of each of J blocks have width / r hidden units; r must not exceed the width.

    >>> prompts = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 1, 1, 4)
    >>> aggregator = PromptAttention(blocks=1, width=4, reduction=2)
    >>> _ = torch.nn.init.zeros_(aggregator.query)
    >>> aggregator(prompts).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    def __init__(self, blocks: int, width: int, reduction: int) -> None:
        super().__init__()
        if reduction > width:
            raise UserError(f"Expected a reduction in [1, {width}], the width of a prompt's tokens; got {reduction}.")
        self.query = nn.Parameter(torch.randn(blocks, width))
        hidden = width // reduction
        last = BlockLinear(blocks, hidden, width)
        self.phi = nn.Sequential(BlockLinear(blocks, width, hidden), nn.ReLU(), last)
        last = BlockLinear(blocks, hidden, width, weight_bound=0.0)
        self.psi = nn.Sequential(BlockLinear(blocks, width, hidden), nn.ReLU(), last)

    def weights(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "K J"]:
        """Compute the clients' weights a_k in each block (Eq. 12)."""
        keys = self.phi(prompts).mean(dim=-2)  # [K, J, width]
        # The softmax is over clients, for each block.
        scores = torch.einsum("jd,kjd->kj", self.query, keys) / float(prompts.shape[-1] ** 0.5)
        return scores.softmax(dim=0)

    def forward(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "J L width"]:
        """Compute the mixture (Eq. 13), in float32."""
        with torch.autocast(prompts.device.type, enabled=False):
            return torch.einsum("kj,kjld->jld", self.weights(prompts), prompts + self.psi(prompts))


class AttentionOverClients(nn.Module):
    """The released code's aggregator: a transformer block over the sequence of clients, followed by their mean.

    Each block of CLIP has its own attention and perceptron; all blocks share both layer norms. Initial values are
    PyTorch's, as in the released code: Xavier's bound for queries, keys and values together, attention biases 0,
    perceptron biases within 1 / sqrt(inputs).

    The width must be a multiple of the number of heads.
    """

    def __init__(self, blocks: int, width: int, heads: int = 8) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"Expected a prompt width divisible by {heads} heads; got {width}. Choose another CLIP.")
        self.heads = heads
        self.project_in = BlockLinear(blocks, width, 3 * width, weight_bound=(6 / (width + 3 * width)) ** 0.5)
        self.project_out = BlockLinear(blocks, width, width)
        wide = BlockLinear(blocks, width, 2 * width, bias_bound=width**-0.5)
        narrow = BlockLinear(blocks, 2 * width, width, bias_bound=(2 * width) ** -0.5)
        self.perceptron = nn.Sequential(wide, nn.ReLU(), narrow)
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron_norm = nn.LayerNorm(width)

    def forward(self, prompts: Float[Tensor, "K J L width"]) -> Float[Tensor, "J L width"]:
        """Compute the mean over clients of their attended prompts, in float32."""
        with torch.autocast(prompts.device.type, enabled=False):
            # Clients form the sequence; blocks and prompt positions form the batch.
            heads = self.project_in(prompts).unflatten(-1, (3, self.heads, -1)).permute(3, 1, 2, 4, 0, 5)
            gathered = F.scaled_dot_product_attention(*heads)  # [J, L, heads, K, width / heads]
            attended = self.project_out(gathered.permute(3, 0, 1, 2, 4).flatten(-2))  # [K, J, L, width]
            hidden = self.attention_norm(prompts + attended)
            hidden = self.perceptron_norm(hidden + self.perceptron(hidden))
            mean: Tensor = hidden.mean(dim=0)
        return mean
