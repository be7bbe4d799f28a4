"""LinearProbe: a linear classifier of frozen CLIP features, trained by FedAvg from zeros, text features or class means.

Papers: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021 (the probe);
Legate et al., NeurIPS 2023 (class means as its start, FedNCM + LP).

Symbols: x image feature, of length 1; W, C x d -> ``weight``; s logit scale.
    p(c | x) = softmax_c(s <W_c, x>), cross-entropy     :meth:`LinearProbe.forward`
    start from class means, in the first round: W_c = m_c / |m_c| from sums over all clients; :class:`MeansFirst`

Deviations:
    * Optimizer: CLIP's paper fits by L-BFGS on all images; fedvlp takes SGD steps on each client, because no site has
      all images.
    * Class means: With ``start: class_means``, fedvlp computes them in the first round and takes no steps in it. This
      round sends as much as any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, zero_shot_text_features
from fedvlp.core.phases import RoundContext
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.state import ClientUpdate, ServerState, State
from fedvlp.core.strategies import Wrapper
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names


class LinearProbe(PromptLearner):
    """Linear classifier of CLIP's image features; it classifies only the classes it was trained on.

    Args:
        start: Initial classifier: ``zeros``, the classes' ``text`` features, or the ``class_means`` of all clients'
            image features, which the first round computes. Means need one class per image.
    """

    supports_several_labels = True
    class_sums: Tensor

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        start: Literal["zeros", "text", "class_means"] = "text",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.start = start
        self.supports_several_labels = start != "class_means"
        self.image_statistics = ("weight",) if start == "class_means" else ()
        self.text_features = zero_shot_text_features(self.clip, class_names).cpu()
        first = torch.zeros_like(self.text_features) if start == "zeros" else self.text_features.clone()
        self.weight = nn.Parameter(first)  # [C, d]
        if start == "class_means":
            self.strategy = MeansFirst(self.strategy, self.text_features)
        self.register_buffer("class_sums", torch.zeros_like(first), persistent=False)
        self.images_seen = 0

    @property
    def computes_means(self) -> bool:
        """Whether the current round computes class means instead of training."""
        return self.start == "class_means" and self.context is not None and self.context.round == 0

    def start_client(self, context: RoundContext) -> None:
        """Prepare for one client's training or pass."""
        super().start_client(context)
        self.class_sums.zero_()
        self.images_seen = 0

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits s <W_c, x>."""
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        with torch.autocast(features.device.type, enabled=False):
            return self.clip.logit_scale * features @ self.weight.T

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Compute the cross-entropy of a batch, with a zero gradient while class means are computed."""
        inputs, labels = batch
        loss = self.loss(self(inputs), labels)
        self.log("loss", loss)
        if not self.computes_means:
            return loss
        features = F.normalize(self.precomputed(inputs)["features"].float(), dim=-1)
        with torch.autocast(features.device.type, enabled=False):
            self.class_sums += F.one_hot(labels, len(self.weight)).to(features).T @ features
        self.images_seen += len(labels)
        return 0 * loss

    def upload_state(self) -> State:
        """Upload the trained classifier, or the sums of features per class divided by the client's number of images."""
        if self.computes_means:
            return {"weight": self.class_sums / max(self.images_seen, 1)}
        return super().upload_state()


@dataclass(frozen=True)
class MeansFirst(Wrapper):
    """Wrapper that normalises each row of ``weight`` after the first round, in which clients send class sums.

    ``inner`` averages the uploads. The text features ``texts`` [C, d] replace the means of classes without images.
    """

    texts: Tensor

    def aggregate(self, server: ServerState, updates: Sequence[ClientUpdate]) -> ServerState:
        """Average the uploads; in the first round, normalise them to unit class means."""
        after = self.inner.aggregate(server, updates)
        if server.round > 0 or not updates:
            return after
        sums = after.shared["weight"]
        has_images = sums.norm(dim=-1, keepdim=True) > 0
        return after.updated({"weight": torch.where(has_images, F.normalize(sums, dim=-1), self.texts)})
