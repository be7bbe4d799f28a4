"""PromptFL: one prompt, learned by all clients and averaged.

Papers: Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models", IEEE TMC 2023;
the prompt is CoOp's (Zhou et al., IJCV 2022).

Symbols: v prompt, L x D -> ``prompt``; f(x) image feature -> ``features``; w_c(v) text feature of "[SOS][v][class c]."
    p(c | x) = softmax_c(cos(w_c(v), f(x)) / tau)    CoOp, Eq. 2; :meth:`PromptFL.forward`
    v <- sum_k |S_k| v_k / sum_k |S_k|               PromptFL, Eq. 3; :class:`.FedAvg`
With ``kl_weight`` it is TRIP of one expert: the control that tells what TRIP's loss gives from what its routing gives.
    CE + beta KL(p_zs || p)                          TRIP, Eqs. 10-12; :func:`.distillation_losses`

Departures:
    * The released code averages by reference and without weights, so its "mean" is the last client's prompt; here it is
      the mean weighted by training images, as the paper says.
    * No learning-rate schedule and no augmentation, so that image features are computed once; the optimizer is CoOp's
      SGD with learning rate 0.002, made afresh each round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, load_clip
from fedvlp.clip.text.prompted_text import ClassPosition
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.methods._shared.learned_prompt import learned_prompt
from fedvlp.methods._shared.teacher import ZeroShotTeacher, distillation_losses
from fedvlp.methods.zero_shot import ZeroShotCLIP, image_features
from fedvlp.ops import cosine_logits
from fedvlp.utils.errors import UserError


class PromptFL(FederatedModule):
    """Learns one text prompt, shared by all classes and clients.

    Args:
        class_names: The classes, in the order of the labels.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        prompt_length: Number of learned vectors L.
        init_words: Words that the prompt starts from, such as "a photo of a"; random vectors if not given.
        class_position: Where the class's name stands: behind the prompt (end), in its middle, or before it (front).
        kl_weight: Weight beta of the divergence from zero-shot CLIP, at least 0; the paper has none.
        templates: How many of CLIP's templates make that zero-shot teacher, in [1, 80].
        optimizer: Makes the optimizer of a client's local training.
    """

    clip: CLIP

    def __init__(
        self,
        class_names: list[str],
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        prompt_length: int = 16,
        init_words: str | None = None,
        class_position: ClassPosition = "end",
        kl_weight: float = 0.0,
        templates: int = 60,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.002),
    ) -> None:
        super().__init__(optimizer)
        if kl_weight < 0:
            raise UserError(f"PromptFL needs a kl_weight of at least 0; got {kl_weight}.")
        self.save_hyperparameters(ignore=["clip", "optimizer"])
        self.set_backbone(load_clip(clip))
        self.class_names, self.kl_weight = class_names, kl_weight
        self.teacher = ZeroShotTeacher(self.clip, class_names, templates) if kl_weight else None
        self.prepare_options = ("class_names", "templates") if self.teacher else ()
        self.prepare_definition = None if self.teacher else image_features
        self.text, self.prompt = learned_prompt(self.clip, class_names, prompt_length, init_words, class_position)

    def baseline(self) -> ZeroShotCLIP:
        """Returns zero-shot CLIP with the same towers."""
        return ZeroShotCLIP(self.class_names, self.clip)

    def prepare(self, images: Float[Tensor, "B 3 H V"]) -> dict[str, Tensor]:
        """Returns f(x), the joint image features [B, d], and the teacher's logits where there is one."""
        constants = image_features(self, images)
        return constants if self.teacher is None else {**constants, "teacher": self.teacher(constants["features"])}

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits cos(w_c, f(x)) / tau (CoOp, Eq. 2)."""
        features = self.constants(inputs)["features"]
        return cosine_logits(features, self.text(self.prompt), self.clip.logit_scale)

    def text_prompts(self) -> dict[str, Tensor]:
        """Returns the prompt [L, D] by name."""
        return {"prompt": self.prompt}

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Returns the cross-entropy of a batch, and beta KL(zero-shot || local) where there is a teacher."""
        inputs, labels = batch
        constants = self.constants(inputs)
        logits = self(constants)
        losses = {"loss": F.cross_entropy(logits, labels)}
        if self.teacher is not None:
            losses = distillation_losses(logits, labels, constants["teacher"], self.kl_weight)
        for name, value in losses.items():
            self.log(name, value)
        return losses["loss"]
