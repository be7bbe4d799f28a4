"""DualCoOp under FedAvg: a positive and a negative prompt decide whether each label applies, from an image's regions.

Paper: Sun et al., "DualCoOp: Fast Adaptation to Multi-Label Recognition with Limited Annotations", NeurIPS 2022. The
loss is ASL's (Ridnik et al., "Asymmetric Loss for Multi-Label Classification", ICCV 2021).

Symbols: positive and negative prompt, L x D each -> ``prompts``; F_m, joint feature of region m of M -> ``regions``;
G_l+ and G_l-, text features of label l under both prompts -> ``texts``; s, CLIP's logit scale; gamma+, gamma-, c.
    S_lm+ = cos(F_m, G_l+), S_lm- = cos(F_m, G_l-)
    a_lm = softmax_m(20 S_lm+), the weights of the regions for both prompts
    p_l, 1 - p_l = softmax(s sum_m a_lm S_lm+, s sum_m a_lm S_lm-)             :meth:`DualCoOp.forward`
    -(1 - p_l)^gamma+ log p_l if label l applies,                              :meth:`DualCoOp.loss`
        else -q_l^gamma- log(1 - q_l) with q_l = max(p_l - c, 0)

Deviations:
    * Regions: The released code projects a ResNet's regions by the value and output layers of its attention pool;
      fedvlp projects a ViT's patches, as in PLOT.
    * Logits: fedvlp computes only the difference of a pair's logits, which determines p_l, and gives the negative class
      the logit 0. The released code fixes s to 100.
    * Loss: The released code sums over images and multiplies by a weight, 0.03 in its example; fedvlp averages over
      images, which is about the same for 32 images. The factors (1 - p)^gamma+ and q^gamma- get no gradient, as in the
      released code.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder
from fedvlp.clip.prompted_text import PromptFeatureCache
from fedvlp.core.protocols import Inputs, Targets
from fedvlp.core.several_labels import label_logits, label_names
from fedvlp.methods.prompts import PromptLearner
from fedvlp.methods.transport import patch_features
from fedvlp.utils.ranges import Names, NonNegativeFloat, OpenFraction, PositiveFloat, PositiveInt


class DualCoOp(PromptLearner):
    """A positive and a negative text prompt, shared by all clients, for images with several labels.

    Args:
        prompt_length: Number of learned vectors L of a prompt.
        class_specific: Whether each label has its own two prompts. The method then classifies only the training labels.
        region_scale: Factor of the cosines in the softmax over regions.
        positive_focus: Exponent gamma+ of the loss of labels that apply.
        negative_focus: Exponent gamma- of the loss of labels that do not apply.
        margin: Probability c; a label that does not apply has no loss up to it.
    """

    needs_images = True  # f(x) does not contain the regions
    supports_several_labels = True
    supports_one_label = False

    def __init__(  # noqa: PLR0913  (the papers' options)
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        class_specific: bool = False,
        region_scale: PositiveFloat = 20.0,
        positive_focus: NonNegativeFloat = 1.0,
        negative_focus: NonNegativeFloat = 2.0,
        margin: OpenFraction = 0.05,
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        labels = label_names(class_names)
        self.text = PromptedTextEncoder(self.clip, labels, prompt_length=prompt_length, class_specific=class_specific)
        count = len(labels) if class_specific else 1
        starts = [self.text.initial_prompt() for _ in range(2 * count)]
        # [2, L, D], or the prompts of all labels one after another in the second dimension.
        self.prompts = nn.Parameter(torch.cat(starts).reshape(2, -1, self.clip.text_width))
        self.region_scale = region_scale
        self.positive_focus = positive_focus
        self.negative_focus = negative_focus
        self.margin = margin
        self.clip.image.project(torch.zeros(1, self.clip.image_width))  # raises an error now if not supported
        self._texts = PromptFeatureCache()

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute each label's positive minus its negative logit, and 0 for the negative class."""
        _, regions = patch_features(self.clip, self.precomputed(inputs)["images"])  # [B, M, d]
        texts = self._texts("", self.text, self.prompts)  # [2, labels, d]
        with torch.autocast(regions.device.type, enabled=False):
            positive, negative = torch.einsum("bmd,pld->pblm", regions, F.normalize(texts.float(), dim=-1))
            weights = (self.region_scale * positive).softmax(-1)
            logits = self.clip.logit_scale * (weights * (positive - negative)).sum(-1)
        return F.pad(logits, (0, len(self.class_names) - logits.shape[1]))

    def loss(self, logits: Float[Tensor, "B C"], targets: Targets) -> Float[Tensor, ""]:
        """Compute the asymmetric loss, summed over an image's known labels and averaged over images."""
        logits = label_logits(logits)
        applies = targets == 1
        shifted = (logits.sigmoid() - self.margin).clamp(min=0)
        focus = torch.where(applies, (-logits).sigmoid() ** self.positive_focus, shifted**self.negative_focus).detach()
        losses = focus * torch.where(applies, F.logsigmoid(logits), (1 - shifted).log())
        return -(losses * ~targets.isnan()).sum(-1).mean()
