"""FedPR: deep visual prompts that clients change only in directions that the global prompts do not use.

Paper: Feng et al., "Learning Federated Visual Prompt in Null Space for MRI Reconstruction", CVPR 2023; for
classification with CLIP's image tower, as in the tables of PLAN, whose port is not released.

Symbols: P global prompts of a block, L x W -> ``start``; V_0 directions of the smallest singular values of P^T P, their
share -> ``null_share``; the other k directions, k x W -> ``used``.
    p(c | x) = softmax_c(cos(w_c, f(x; P)) / tau), cross-entropy    :meth:`FedPR.forward`
    P^T P = V S V^T, block by block                                 :func:`used_directions`
    P_k <- P_k + u V_0 V_0^T of each step u of the optimizer        :meth:`FedPR.on_train_batch_end`
    P <- sum_k |S_k| P_k / sum_k |S_k|                              :class:`.FedAvg`
As in the released code, only the last global prompts enter P^T P, and steps are not projected in the first round, in
which these prompts are untrained. Each client computes V_0 from the downloaded prompts, so V_0 is not sent.

Deviations:
    * Directions: The released code removes a fifth of the directions. At most L singular values of P^T P are above
      zero, so the solver chooses the other directions arbitrarily. Therefore, fedvlp removes at most the L directions
      that P uses.
    * Scale: The released code divides V_0 V_0^T by its Frobenius norm, sqrt(0.8 W) = 24.8 with ViT-B/16. Instead,
      fedvlp divides the learning rate, 0.1 / 24.8 = 0.004, also in the first round.
    * Prompts: The released code has 20 per block and draws them uniformly from [0, 1]; fedvlp has 8, as counted in
      PLAN's tables, and draws them from N(0, 0.02).
    * Task: The paper reconstructs images in 50 rounds of 10 epochs; fedvlp classifies, with the rounds and batches of
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
    """Deep visual prompts, shared by all clients and trained in the null space of the last global prompts.

    Args:
        depth: Number of first blocks that have their own prompts; all blocks if null.
        prompt_length: Number of learned vectors L in each block's prompt.
        templates: Number of CLIP's templates averaged for the frozen text features, in [1, 80].
        null_share: Minimum share of a token's W directions in which clients move, in (0, 1]; they have the smallest
            singular values. With 1, steps are not restricted (federated visual prompt tuning).
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
        """Prepare for one client's local training, starting from the downloaded prompts."""
        super().start_client(context)
        # The downloaded prompts determine the used directions, so nothing else is sent.
        self.start.copy_(self.prompts)
        self.used.copy_(used_directions(self.start, self.null_share))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f(x; P)) / tau."""
        return self.written(self.image_features(self.precomputed(inputs)["images"]))

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Remove the part along the used directions from all steps so far, except in the first round."""
        # In the first round, the global prompts are untrained, so steps cannot disturb them.
        if self.context is None or self.context.round == 0:
            return
        # Earlier steps are already in the null space, so projecting them again does not change them.
        moved = self.prompts - self.start
        self.prompts.sub_(moved @ self.used.mT @ self.used)

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute the joint image features under the prompts, not normalised."""
        return self.visual.encode(images, self.prompts)


def used_directions(prompts: Float[Tensor, "J L W"], null_share: float) -> Float[Tensor, "J k W"]:
    """Compute the directions of the largest singular values of each block's P^T P, orthonormal.

    V_0 keeps a share of the W directions, at least W - L of them. The number of the other directions is truncated, as
    in the released code.

    >>> used_directions(torch.tensor([[[0.0, 3.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]]), null_share=0.75).abs().tolist()
    [[[0.0, 1.0, 0.0, 0.0]]]
    """
    length = prompts.shape[1]
    width = prompts.shape[2]
    # P and P^T P have the same right singular vectors, in the same order.
    directions: Tensor = torch.linalg.svd(prompts.float(), full_matrices=False).Vh
    return directions[:, : min(length, int((1 - null_share) * width))]
