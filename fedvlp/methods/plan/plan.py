"""PLAN: deep prompts in both towers, learned by each client, then mixed by aggregators that all clients learn.

Paper: Gong et al., "Federated domain generalization via prompt learning and aggregation" (PLAN).

Symbols: T_k, V_k -> ``pool.own``; {T_k}, {V_k} -> ``pool.clients``; T_g, V_g -> ``pool.globals``; A_t, A_v with q, phi,
psi -> ``pool.aggregators``; lambda -> ``kl_weight``; r -> ``reduction``.
    p(c | x) with prompts in both towers, Eqs. 2-6, 8    :class:`.DeepPromptedCLIP`
    stage 1: CE + lambda KL(p_g || p_k), Eqs. 7-10       :meth:`PLAN.training_step`, :meth:`PLAN.reference`
    T_g = A_t({T_k}), V_g = A_v({V_k}), Eqs. 11-13       :class:`.PromptAttention`
    stage 2: CE of p_g trains A_t and A_v, Eqs. 14-16    :class:`.PromptPool`

A client that never took part has an empty slot, left out of the mixture, and starts from random prompts of its own. A
plain Trainer has nobody to mix with: it trains stage 1 against zero-shot CLIP, and T_g, V_g are the prompts trained.

Departures:
    * r, the shape of q and its scale are not in the paper: r = 8 comes nearest to its cost, q meets the mean over
      tokens / sqrt(width), and psi is a residual from zero, so that the first mixture is nearly the mean.
    * The released aggregator, of 81.9 M parameters, is an option. Its mistakes are not: a text aggregator that is never
      trained, prompts without a local loss after the first round, blocks mixed up by their names.
    * The first reference has the released code's 60 templates; the paper names none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.state import State, detached, select
from fedvlp.methods._shared.deep_prompts import DeepPromptedCLIP, initial_prompt
from fedvlp.methods._shared.prompt_learner import PromptLearner
from fedvlp.methods._shared.teacher import ZeroShotTeacher, distillation_losses
from fedvlp.methods.plan.prompt_pool import Aggregator, PromptPool
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt, Templates


class PLAN(PromptLearner):
    """Learns each client's deep prompts, then how to mix them into one set for all.

    Args:
        class_names: The classes, in the order of the labels.
        num_clients: Number of all clients K; the command line takes it from the data.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        prompt_length: Number of learned vectors in a block's prompt.
        depth: Number of first blocks with prompts of their own, in both towers; all blocks if not given.
        kl_weight: Weight lambda of the divergence from the reference, at least 0.
        templates: How many of CLIP's templates make the zero-shot reference of the first round, in [1, 80].
        first_round_reference: Whether the first round has a reference.
        aggregator: The paper's ``attention``, or the released code's ``attention_over_clients``.
        reduction: r of the paper's aggregators: phi and psi have width / r hidden units.
        aggregate_text: Whether an aggregator mixes the text prompts; else their mean is taken.
        aggregate_visual: The same for the visual prompts.
        optimizer: Makes the optimizer of a client's local training, in both stages.
    """

    needs_images = True
    averages_over_batch = True
    train_only_personal = ("pool.own",)

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
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
        self.save_hyperparameters()
        self.kl_weight = kl_weight
        self.first_round_reference = first_round_reference
        self.teacher = ZeroShotTeacher(self.clip, class_names, templates)
        self.prompted = DeepPromptedCLIP(self.clip, class_names, prompt_length)
        has_aggregator = {"text": aggregate_text, "visual": aggregate_visual}
        aggregated = [kind for kind, wanted in has_aggregator.items() if wanted]
        self.pool = PromptPool(self.prompted.initial_prompts(depth), num_clients, aggregator, reduction, aggregated)

    def configure_phases(self) -> Sequence[Phase]:
        """Returns stage 1, for the prompts, and stage 2, for the aggregators if there are any."""
        return self.pool.phases("pool")

    def shared_state(self) -> State:
        """Returns what the phases upload, and the global prompts, which the server computes from it."""
        return super().shared_state() | detached(select(self.state_dict(), ("pool.globals",)))

    def initial_personal_state(self, start: State) -> State:
        """Returns random prompts for a client that never took part (Section IV-B)."""
        return {name: initial_prompt(prompts.shape) for name, prompts in start.items()}

    def upload_state(self) -> State:
        """Returns the client's prompts for its slot after stage 1, its aggregators after stage 2."""
        return super().upload_state() if self._aggregates else self.pool.upload("pool")

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits under the global prompts (Eq. 8)."""
        return self.prompted.logits(self.constants(inputs)["images"], self.pool.globals)

    def local_logits(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits under the client's own prompts in stage 1, under the aggregated ones in stage 2."""
        prompts = self.pool.aggregate() if self._aggregates else self.pool.own
        return self.prompted.logits(self.constants(inputs)["images"], prompts)

    @torch.no_grad()
    def reference(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"] | None:
        """Returns the logits of p_g, in the first round those of zero-shot CLIP; None without a reference."""
        first = self.context is None or self.context.round == 0
        if self.kl_weight == 0 or (first and not self.first_round_reference):
            return None
        if first:
            return self.teacher(self.clip.encode_image(images))
        return self.prompted.logits(images, self.pool.globals)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the loss of stage 1 (Eq. 10) or of stage 2 (Eqs. 14, 15)."""
        inputs, labels = batch
        images = self.constants(inputs)["images"]
        if self._aggregates:
            return self._aggregation_loss(images, labels)
        logits = self.prompted.logits(images, self.pool.own)
        reference = self.reference(images)
        if reference is None:
            losses = {"loss": F.cross_entropy(logits, labels)}
        else:
            losses = distillation_losses(logits, labels, reference, self.kl_weight)
        self.log_dict(losses)
        return losses["loss"]

    def _aggregation_loss(self, images: Tensor, labels: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        loss = F.cross_entropy(self.prompted.logits(images, self.pool.aggregate()), labels)
        self.log("aggregation_loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Takes the own prompts as the global ones where there is no federation."""
        if self.context is None:
            self.pool.publish()

    @property
    def _aggregates(self) -> bool:
        return self.context is not None and self.context.phase.name == "aggregators"
