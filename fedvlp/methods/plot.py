"""PLOT under FedAvg: optimal transport divides each image's patches between several prompts.

Paper: Chen et al., "PLOT: Prompt Learning with Optimal Transport for Vision-Language Models", ICLR 2023.

Symbols: N prompts, L x D each -> ``prompts``; G_m, joint feature of patch m of M -> ``patches``; H_nc, text feature of
class c under prompt n -> ``texts``; lambda -> ``epsilon``.
    C_nm = 1 - cos(G_m, H_nc)                                        :func:`.transport_logits`
    T = argmin <C, T> + lambda <T, log T>,                           :func:`.transport_plan`, by Sinkhorn's algorithm
        over T >= 0 with sum_n T_nm = 1 / M and sum_m T_nm = 1 / N
    p(c | x) = softmax_c((1 - <C, T>) / tau), cross-entropy          :meth:`PLOT.forward`

Deviations:
    * Patches: The released code takes local features of a ResNet from a rewritten attention pool; fedvlp takes a ViT's
      patches through the last norm and the projection, as in FedOTP. The authors find these less discriminative, and
      propose PLOT++ for ViTs.
    * Iterations: The released code stops when the mean change over a batch is below 0.01; fedvlp runs all iterations,
      because an image's class would otherwise depend on its batch.
    * ImageNet: The released code adds the logits of the image feature and the mean text feature for this data set;
      fedvlp treats all data sets alike.
    * Values: The released code's N = 4, L = 16, lambda = 0.1 and 100 iterations.
"""

from functools import partial

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.core.protocols import Inputs
from fedvlp.methods.prompts import PromptLearner
from fedvlp.methods.transport import patch_features, transport_logits
from fedvlp.utils.ranges import Names, PositiveFloat, PositiveInt


class PLOT(PromptLearner):
    """Several text prompts, shared by all classes and clients, each for different patches of an image.

    Args:
        num_prompts: Number of prompts N.
        epsilon: Weight lambda of the plan's entropy.
        iterations: Number of iterations that compute the plan.
        prompt_length: Number of learned vectors L of a prompt.
    """

    needs_images = True  # f(x) does not contain the patches

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        num_prompts: PositiveInt = 4,
        epsilon: PositiveFloat = 0.1,
        iterations: PositiveInt = 100,
        prompt_length: PositiveInt = 16,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        starts = [self.text.initial_prompt() for _ in range(num_prompts)]
        self.prompts = nn.Parameter(torch.stack(starts))  # [N, L, D]
        # With mass=None, patches give their whole mass.
        self.transport = partial(transport_logits, mass=None, epsilon=epsilon, iterations=iterations)
        self.clip.image.project(torch.zeros(1, self.clip.image_width))  # raises an error now if not supported
        self._texts = PromptFeatureCache()

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits <cos, T> / tau, which equal (1 - <C, T>) / tau up to a constant."""
        _, patches = patch_features(self.clip, self.precomputed(inputs)["images"])
        texts = self._texts("", self.text, self.prompts)  # [N, C, d]
        return self.transport(patches, texts, self.clip.logit_scale)
