"""MOON: pulls a client's image representations towards the global model's and away from its previous ones.

Paper: Li et al., "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

Symbols: mu -> ``weight``, tau -> ``temperature``; z, z_glob, z_prev -> an image's representations by three states. They
are the current tensors, the tensors at the start of the round, and the client's memory after its previous training.
    l_con = -log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))    Eq. 3
    l = l_sup + mu E[l_con]                                                                              Eq. 4
    both in :meth:`MOON.loss`

Communication: no extra tensors. A client stores as many values as it trains. Its steps take about three times as long,
because they need three more passes, one of them with gradients.

Deviations:
    * Representation: The paper adds a projection head; fedvlp uses :meth:`.FederatedModule.representation`. By default
      this is the logits minus their mean over classes, because the image features of many methods never change.
    * First round: The paper takes z_prev from the initial model; fedvlp omits the term, because z would be attracted to
      and repelled from the same tensors.
    * Personal tensors: The paper has none; fedvlp computes each of the three representations with the client's personal
      tensors of that time.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import State
from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class MOON(AddOn):
    """Model-contrastive loss, added to each client's loss.

    Args:
        weight: mu, >= 0; the paper tries 0.1, 1, 5 and 10.
        temperature: tau, > 0.
    """

    weight: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.5

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """Compute the mean over images of mu l_con; None in a client's first round."""
        if not self.weight or not local.memory:
            return None
        module = local.module
        # Only z needs gradients.
        with torch.no_grad():
            shared = represent(module, local.start, inputs)
            last = represent(module, local.memory, inputs)
        own = module.representation(inputs)
        if not own.requires_grad:
            raise UserError(
                f"{type(module).__name__}.representation does not depend on the phase's trainable parameters, so MOON "
                "has no effect. Override local_logits or representation, or remove MOON from trainer.local.add_ons."
            )
        return self.weight * model_contrast(own, shared, last, self.temperature)

    def finish(self, local: LocalContext, upload: State) -> LocalResult:
        """Store the trained tensors on the client."""
        return LocalResult(upload, memory=local.trained if self.weight else {})


def model_contrast(
    own: Float[Tensor, "B n"], shared: Float[Tensor, "B n"], last: Float[Tensor, "B n"], temperature: float
) -> Float[Tensor, ""]:
    """Compute the mean over images of l_con (Eq. 3) from z, z_glob and z_prev."""
    similarities = torch.stack([F.cosine_similarity(own, shared), F.cosine_similarity(own, last)], 1)  # [B, 2]
    return -(similarities / temperature).log_softmax(1)[:, 0].mean()


def represent(module: FederatedModule, tensors: State, inputs: Inputs) -> Float[Tensor, "B n"]:
    """Compute representations of images with ``tensors`` instead of the module's own."""
    replaced = {f"module.{name}": value for name, value in tensors.items()}
    return functional_call(_Representation(module), replaced, (inputs,), tie_weights=False)


class _Representation(torch.nn.Module):
    def __init__(self, module: FederatedModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> Tensor:
        return self.module.representation(inputs)
