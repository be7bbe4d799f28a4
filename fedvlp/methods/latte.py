"""Latte: zero-shot CLIP plus memories of confident unlabelled images, which clients share as class prototypes.

Paper: Bao et al., "Latte: Collaborative Test-Time Adaptation of VLMs in Federated Learning", ICCV 2025.

Symbols: f image feature and t_c text feature, unit vectors; s logit scale; z_c = s <t_c, f> zero-shot logits; H entropy
of softmax(z) divided by log C; L_c local memory -> ``memory`` with ``entropies``; k_l -> ``memory_size``; k_e ->
``external_size``; alpha -> ``memory_weight``; beta -> ``sharpness``; gamma -> ``entropy_weight``.
    L_c keeps the k_l images of lowest entropy with argmax z = c      :meth:`Latte.remember`
    g_c proportional to sum_{l in L_c} exp(-gamma H_l) l              :meth:`Latte.prototypes`
    E_c: the k_e clients' prototypes that are most similar to g_c     :meth:`Latte.merged_memory`
    M_c: the k_l entries of lowest entropy in L_c and E_c             :meth:`Latte.merged_memory`
    c_c proportional to sum_{m in M_c} exp(beta <f, m> - gamma H_m) m
    p(c | f) = softmax_c(z_c + alpha s <c_c, f>)                      :meth:`Latte.forward`

Deviations:
    * Clients: In the paper, all clients classify their test images at the same time and exchange prototypes repeatedly.
      In fedvlp, source clients pass once through their training images without labels and send their prototypes once.
      The images of an evaluated domain then arrive in their stored order and retrieve prototypes for each image.
    * Defaults: The released code has options for each data set; fedvlp uses those of VLCS.
"""

from collections.abc import Iterable, Sequence
from math import log

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import CLIP, CLIPSpec, zero_shot_text_features
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Batch, Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import State
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import Names, NonNegativeFloat, PositiveInt


class Latte(PromptLearner):
    """Test-time adaptation with a local memory and the clients' class prototypes; no labels are used.

    Args:
        num_clients: Number of clients K.
        memory_size: Number k_l of remembered images per class.
        external_size: Number k_e of clients' prototypes per class that are retrieved.
        memory_weight: Weight alpha of the memory's logits, at least 0; with 0, it is zero-shot CLIP.
        sharpness: Factor beta of the similarity to an entry, at least 0.
        entropy_weight: Factor gamma by which an entry's entropy lowers its weight, at least 0.
    """

    image_statistics = ("client_prototypes", "client_entropies")
    needs_test_images = True
    text_features: Tensor
    client_prototypes: Tensor
    client_entropies: Tensor
    memory: Tensor
    entropies: Tensor

    def __init__(
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        memory_size: PositiveInt = 15,
        external_size: PositiveInt = 12,
        memory_weight: NonNegativeFloat = 0.3,
        sharpness: NonNegativeFloat = 6.0,
        entropy_weight: NonNegativeFloat = 6.0,
    ) -> None:
        super().__init__(class_names, clip)
        self.automatic_optimization = False
        self.external_size = external_size
        self.memory_weight = memory_weight
        self.sharpness = sharpness
        self.entropy_weight = entropy_weight
        texts = zero_shot_text_features(self.clip, class_names)
        classes, width = texts.shape
        self.register_buffer("text_features", texts, persistent=False)
        self.register_buffer("client_prototypes", torch.zeros(num_clients, classes, width))
        self.register_buffer("client_entropies", torch.ones(num_clients, classes))
        self.register_buffer("memory", torch.zeros(classes, memory_size, width), persistent=False)
        self.register_buffer("entropies", torch.ones(classes, memory_size), persistent=False)  # 1 if empty

    def configure_phases(self) -> Sequence[Phase]:
        """Describe the only phase, in which clients fill their memories and send prototypes."""
        slots = Slots("client", len(self.client_prototypes))
        names = self.image_statistics
        return (Phase("memory", (), names, slots, download=(), deploy=names, one_pass=True),)

    def on_train_epoch_start(self) -> None:
        """Empty the memory."""
        self.memory.zero_()
        self.entropies.fill_(1)

    @torch.no_grad()
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Remember a batch's images, without their labels."""
        for feature in F.normalize(self.precomputed(batch[0])["features"].float(), dim=-1):
            self.remember(feature)

    def upload_state(self) -> State:
        """Compute the client's prototypes [C, d] and their entropies [C]."""
        prototypes = self.prototypes()
        return {"client_prototypes": prototypes, "client_entropies": self.entropy(self.zero_shot_logits(prototypes))}

    def on_train_epoch_end(self) -> None:
        """Store the prototypes after the only pass of ``lightning.Trainer``."""
        for name, value in self.upload_state().items():
            getattr(self, name)[0] = value

    def see_test_images(self, batches: Iterable[Inputs]) -> None:
        """Empty the memory; each image is remembered when it is classified."""
        self.on_train_epoch_start()

    def zero_shot_logits(self, features: Float[Tensor, "*B d"]) -> Float[Tensor, "*B C"]:
        """Compute z for unit features."""
        with torch.autocast(features.device.type, enabled=False):
            return self.clip.logit_scale * features @ self.text_features.T

    def entropy(self, logits: Float[Tensor, "*B C"]) -> Float[Tensor, "*B"]:
        """Compute the entropy of probabilities, in [0, 1]."""
        return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1) / log(logits.shape[-1])

    def remember(self, feature: Float[Tensor, "d"]) -> Float[Tensor, "C"]:
        """Replace the pseudo-label's most uncertain entry if the image is more certain; return the zero-shot logits."""
        logits = self.zero_shot_logits(feature)
        entropy = self.entropy(logits)
        label = logits.argmax()[None]
        slot = self.entropies[label].argmax(-1)  # an empty one, if any
        is_better = entropy < self.entropies[label, slot]
        self.memory[label, slot] = torch.where(is_better, feature, self.memory[label, slot])
        self.entropies[label, slot] = torch.where(is_better, entropy, self.entropies[label, slot])
        return logits

    def prototypes(self) -> Float[Tensor, "C d"]:
        """Compute the unit mean of each class's memory, weighted by certainty; zero for an empty memory."""
        weights = torch.exp(-self.entropy_weight * self.entropies)
        return F.normalize((weights[..., None] * self.memory).sum(1), dim=-1)

    def merged_memory(self) -> tuple[Float[Tensor, "C k d"], Float[Tensor, "C k"]]:
        """Retrieve similar clients' prototypes, and keep the entries of lowest entropy."""
        similarity = (self.client_prototypes * self.prototypes()).sum(-1).T  # [C, K]
        nearest = similarity.argsort(dim=1, descending=True, stable=True)[:, : self.external_size]
        external = torch.take_along_dim(self.client_prototypes.transpose(0, 1), nearest[..., None], dim=1)
        entries = torch.cat([self.memory, external], dim=1)
        entropies = torch.cat([self.entropies, torch.take_along_dim(self.client_entropies.T, nearest, dim=1)], dim=1)
        kept = entropies.argsort(dim=1, stable=True)[:, : self.memory.shape[1]]
        return torch.take_along_dim(entries, kept[..., None], dim=1), torch.take_along_dim(entropies, kept, dim=1)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Classify images in their order, each after it was remembered."""
        logits = []
        for feature in F.normalize(self.precomputed(inputs)["features"].float(), dim=-1):
            zero_shot = self.remember(feature)
            entries, entropies = self.merged_memory()
            with torch.autocast(feature.device.type, enabled=False):
                weights = torch.exp(self.sharpness * (entries @ feature - 1) - self.entropy_weight * entropies)
                classifier = F.normalize((weights[..., None] * entries).sum(1), dim=-1)
                logits.append(zero_shot + self.memory_weight * self.clip.logit_scale * classifier @ feature)
        return torch.stack(logits)
