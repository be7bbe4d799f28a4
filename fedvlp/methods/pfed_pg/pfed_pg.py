"""pFedPG: the server generates a visual prompt for each client, which trains it further, with a head of its own.

Paper: Yang et al., "Efficient Model Personalization in Federated Learning via Client-Specific Prompt Generation",
ICCV 2023; here around CLIP.

Symbols: P_n, L x W, as downloaded -> ``prompt``, as trained, P'_n -> ``local_prompt``; H_n, C x d -> ``head``; P_base,
d_n, W^Q, W^K, W^V, W^O, together phi -> ``generator``; alpha -> ``server_lr``; gamma, the optimizer's learning rate.
    P_n = softmax(Q K^T / sqrt(l_k)) V W^O, Q = d_n W^Q, K = P_base W^K, V = P_base W^V    :class:`.PromptGenerator`
    cross-entropy of H_n f(x; P_n) trains P_n and H_n, Eqs. 1, 2                           :meth:`PFedPG.forward`
    phi <- phi + alpha sum_n (dP_n / dphi)^T (P'_n - P_n), Eqs. 4, 5                       :class:`.PromptGeneration`

Departures:
    * The paper calls P'_n - P_n the gradient that the server descends, which would lead away from P'_n. Here the server
      goes towards it.
    * How many tokens d_n has is not said; L, as many as the prompt that its queries make. Nor is where the generator
      starts (:class:`.PromptGenerator` says why there), or how wide its attention is: as wide as tokens.
    * The head is a linear layer of f(x), at length 1, that starts as CLIP's text features over tau, so that untrained
      it is zero-shot CLIP's. The paper's ViT knows no text. With ``trains_head`` false it stays there.
    * The paper has no domain that no client has. There the prompt of the mean descriptor classifies with the text
      head; ``unseen: mean`` and ``each`` take the clients' own models.
    * A client is measured with P'_n, to which its head belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedvlp.clip import CLIP, CLIPSpec
from fedvlp.core.module import Unseen
from fedvlp.core.phases import Phase
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State, detached, select
from fedvlp.core.strategies import Slots
from fedvlp.methods._shared.personal_prompt_learner import PersonalPromptLearner
from fedvlp.methods._shared.visual_prompts import VisualPromptedCLIP
from fedvlp.methods.pfed_pg.prompt_generator import PromptGeneration, PromptGenerator
from fedvlp.utils.ranges import Names, PositiveFloat, PositiveInt, Templates


class PFedPG(PersonalPromptLearner):
    """Learns to generate each client's visual prompt, from which it trains its own prompt and head.

    Args:
        class_names: The classes, in the order of the labels.
        num_clients: Number of all clients K; the command line takes it from the data.
        clip: The frozen CLIP: a name, name and weights, or one that was loaded before.
        trains_head: Whether each client trains a head of its own; else all classify by CLIP's text features.
        templates: How many of CLIP's templates make these, from which heads start, in [1, 80].
        prompt_length: Number of learned vectors L of a prompt.
        server_lr: Learning rate alpha of the server's generator.
        unseen: What classifies images of a domain that no client has: the ``shared`` prompt of the mean descriptor with
            the text features, the ``mean`` of the probabilities of all clients' models, or ``each`` of these in turn.
        optimizer: Makes the optimizer of a client's local training.
    """

    needs_images = True

    def __init__(  # noqa: PLR0913  (the paper's options)
        self,
        class_names: Names,
        num_clients: PositiveInt,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        trains_head: bool = True,
        templates: Templates = 1,
        prompt_length: PositiveInt = 10,
        server_lr: PositiveFloat = 0.001,
        unseen: Unseen = "shared",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.25, weight_decay=0.001),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.save_hyperparameters()
        self.unseen = unseen
        self.personal = ("local_prompt", "head") if trains_head else ("local_prompt",)
        self.prompted = VisualPromptedCLIP(self.clip, class_names, templates)
        self.generator = PromptGenerator(num_clients, prompt_length, self.clip.image_width)
        self.server = PromptGeneration(self.generator, server_lr, Slots("client", num_clients))
        self.set_prompts(self.generator(None))  # [L, W]
        head = self.clip.logit_scale * F.normalize(self.prompted.head.text_features, dim=-1)
        self.head = nn.Parameter(head.clone(), requires_grad=trains_head)  # [C, d]

    def configure_phases(self) -> Sequence[Phase]:
        """Returns one phase: the trained prompt goes up, the head stays."""
        return (Phase("train", train=self.personal, upload=("prompt",), strategy=self.server),)

    def shared_state(self) -> State:
        """Returns the mean descriptor's prompt and the generator, which never leaves the server."""
        return super().shared_state() | detached(select(self.state_dict(), ("generator",)))

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Returns the logits of the client's own model, or of the shared part alone."""
        images = self.constants(inputs)["images"]
        if not self.uses_personal:
            return self.prompted.logits(images, self.prompt[None])
        features = self.prompted.visual.encode(images, self.own_prompt()[None])
        return F.normalize(features.float(), dim=-1) @ self.head.float().T

    def image_features(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Returns joint image features under the shared prompt, not normalised."""
        features: Tensor = self.prompted.visual.encode(images, self.prompt[None])
        return features
