"""LoCoOp under FedAvg: PromptFL that stays uncertain about the patches that do not show an image's class.

Paper: Miyai et al., "LoCoOp: Few-Shot Out-of-Distribution Detection via Prompt Learning", NeurIPS 2023.

Symbols: v prompt, L x D -> ``prompt``; f(x) image feature; f_i, joint feature of patch i of M -> ``patches``;
K -> ``top_k``; lambda -> ``entropy_weight``.
    p(c | x) = softmax_c(cos(w_c(v), f(x)) / tau)                            :meth:`LoCoOp.forward`
    p_i(c | x) = softmax_c(cos(w_c(v), f_i) / tau)                           :meth:`LoCoOp.region_logits`
    J = {i: the class y is not among the K largest of p_i}
    CE(p, y) - lambda mean of H(p_i) over J, with the entropy H              :meth:`LoCoOp.losses`

Deviations:
    * Patches: The released code takes a patch's value vectors of the last block instead of its attention; fedvlp takes
      the block's usual output, through the last norm and the projection, as in PLOT and FedOTP.
    * K: The paper's 200 is for ImageNet's 1,000 classes, and the authors ask to choose it for other data; by default,
      fedvlp takes a fifth of the classes.
    * Entropy: The released code adds 1e-5 to probabilities before the logarithm; fedvlp does not.
"""

import torch
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.methods.fed_med_clip import entropies
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.transport import patch_features
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class LoCoOp(PromptFL):
    """One text prompt, shared by all classes and clients, for the detection of images of other classes.

    Args:
        entropy_weight: Weight lambda of the patches' entropy; 0 gives PromptFL.
        top_k: Number K of a patch's likeliest classes; a patch without the image's class among them is not part of the
            object. null for a fifth of the classes.
        prompt_length: Number of learned vectors L.
        init_words: Initial words of the prompt, such as "a photo of a"; random vectors if omitted.
    """

    needs_images = True  # f(x) does not contain the patches
    supports_several_labels = False

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        entropy_weight: NonNegativeFloat = 0.25,
        top_k: PositiveInt | None = None,
        prompt_length: PositiveInt = 16,
        init_words: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, prompt_length=prompt_length, init_words=init_words, optimizer=optimizer)
        self.entropy_weight = entropy_weight
        self.top_k = top_k or max(round(len(class_names) / 5), 1)
        self.clip.image.project(torch.zeros(1, self.clip.image_width))  # raises an error now if not supported

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of images."""
        return self.logits(self.clip.encode_image(self.precomputed(inputs)["images"]))

    def region_logits(self, inputs: Inputs) -> Float[Tensor, "B M C"]:
        """Compute the logits of all patches."""
        return self._both_logits(inputs)[1]

    def _both_logits(self, inputs: Inputs) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B M C"]]:
        features, patches = patch_features(self.clip, self.precomputed(inputs)["images"])
        vectors = torch.cat([features[:, None], patches], dim=1)  # [B, 1 + M, d]
        logits = self.logits(vectors.flatten(0, 1)).view(*vectors.shape[:2], -1)
        return logits[:, 0], logits[:, 1:]

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the cross-entropy, the mean entropy of patches in J (0 if J is empty), and their weighted sum."""
        logits, regions = self._both_logits(inputs)
        regions = regions.float()
        own = regions.gather(-1, labels[:, None, None].expand(*regions.shape[:2], 1))
        # A class is among the K largest if fewer than K others are larger.
        is_other = (regions > own).sum(-1) >= self.top_k
        entropy = (entropies(regions) * is_other).sum() / is_other.sum().clamp_min(1)
        cross_entropy = self.loss(logits, labels)
        loss = cross_entropy - self.entropy_weight * entropy
        return {"cross_entropy": cross_entropy, "entropy": entropy, "loss": loss}
