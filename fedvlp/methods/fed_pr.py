"""FedPR: deep visual prompts, of which clients move only what the global prompts do not use.

Paper: Feng et al., "Learning Federated Visual Prompt in Null Space for MRI Reconstruction", CVPR 2023; here around
CLIP's image tower for classification, as in the tables of PLAN, whose port is not released.

Symbols: P global prompts of a block, L x W -> ``start``; V_0 the directions of the smallest singular values of P^T P,
their share -> ``null_share``; the other k directions, k x W -> ``used``; R -> :func:`used_directions`.
    p(c | x) = softmax_c(cos(w_c, f(x; P)) / tau), cross-entropy    :meth:`FedPR.forward`
    P^T P = V S V^T, block by block                                 :func:`used_directions`
    P_k <- P_k + u V_0 V_0^T of each step u of the optimizer        :meth:`FedPR.on_train_batch_end`
    P <- sum_k |S_k| P_k / sum_k |S_k|                              :class:`.FedAvg`
Only the last global prompts enter P^T P, and in the first round, in which they hold nothing yet, steps are free; both
are the released code's. What V_0 is each client finds out from the prompts that it downloads, so that it is not sent.

Departures:
    * Directions: the released code removes a fifth of the directions, though P^T P has at most L singular values above
      zero, so the solver chooses the others; fedvlp removes at most the L directions that P uses.
    * Scale: the released code divides V_0 V_0^T by its Frobenius norm, sqrt(0.8 W) = 24.8 with ViT-B/16; fedvlp divides
      the learning rate, 0.1 / 24.8 = 0.004, also in the first round.
    * Prompts: they start at N(0, 0.02), 8 to a block, as PLAN's tables count them; the released 20 start uniform in [0,
      1].
    * Task: the paper reconstructs images in 50 rounds of 10 epochs; fedvlp classifies, with the rounds and batches of
      PLAN.
"""

from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec, PromptedImageEncoder, ZeroShotClassifier
from fedvlp.core.phases import RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner, checked_depth, initial_prompt
from fedvlp.utils.ranges import FractionAboveZero, Names, PositiveInt, Templates


class FedPR(PromptLearner):
    """Learns deep visual prompts, shared by all clients, by steps in the null space of the last global ones.

    Args:
        depth: Number of first blocks with prompts of their own; all blocks if not given.
        prompt_length: Number of learned vectors L in a block's prompt.
        templates: How many of CLIP's templates make the frozen text features, in [1, 80].
        null_share: Share of a token's W directions that clients always move in, those of the smallest singular values,
            in (0, 1]. With 1 steps are free: federated visual prompt tuning.
    """

    needs_images = True
    start: Tensor
    used: Tensor

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        depth: PositiveInt | None = None,
        prompt_length: PositiveInt = 8,
        templates: Templates = 1,
        null_share: FractionAboveZero = 0.8,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=0.004),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.null_share = null_share
        self.visual = PromptedImageEncoder(self.clip)
        self.written = ZeroShotClassifier(self.clip, class_names, templates)
        blocks = checked_depth(depth, self.visual.depth)
        self.prompts = nn.Parameter(initial_prompt((blocks, prompt_length, self.clip.image_width)))  # [J, L, W]
        self.register_buffer("start", self.prompts.detach().clone(), persistent=False)
        self.register_buffer("used", used_directions(self.start, null_share), persistent=False)  # [J, k, W]

    @torch.no_grad()
    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's local training, from the prompts that it downloaded."""
        super().start_client(context)
        # What is downloaded says which directions are used, so that nothing else need be sent.
        self.start.copy_(self.prompts)
        self.used.copy_(used_directions(self.start, self.null_share))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x; P)) / tau."""
        return self.written(self.image_features(self.precomputed(inputs)["images"]))

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Remove the used directions' part from all steps so far; in the first round nothing."""
        # In the first round the global prompts hold nothing that steps could disturb.
        if self.context is None or self.context.round == 0:
            return
        # steps before this one lie in the null space already, and a projection leaves them as they are
        moved = self.prompts - self.start
        self.prompts.sub_(moved @ self.used.mT @ self.used)

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute joint image features under the prompts, not normalised."""
        features: Tensor = self.visual.encode(images, self.prompts)
        return features


def used_directions(prompts: Float[Tensor, "J L W"], null_share: float) -> Float[Tensor, "J k W"]:
    """Compute the directions of the largest singular values of each block's P^T P, orthonormal.

    A share of the W directions is left for V_0, which never has fewer than W - L. The number of the other directions is
    truncated, as in the released code.

    >>> used_directions(torch.tensor([[[0.0, 3.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]]), null_share=0.75).abs().tolist()
    [[[0.0, 1.0, 0.0, 0.0]]]
    """
    length = prompts.shape[1]
    width = prompts.shape[2]
    # the right singular vectors of P are those of P^T P, in the same order
    directions: Tensor = torch.linalg.svd(prompts.float(), full_matrices=False).Vh
    return directions[:, : min(length, int((1 - null_share) * width))]
