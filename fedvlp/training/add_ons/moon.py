"""MOON: a client's representation of an image is drawn to that of the shared tensors and away from its own last one.

Paper: Li et al., "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

Symbols: z -> what the tensors in training give, z_glob -> those at the start of the round, z_prev -> those at the end
of the client's last training, ``kept``; mu -> ``weight``, tau -> ``temperature``.
    l_con = -log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))    Eq. 3
    l = l_sup + mu E[l_con]                                                                              Eq. 4
    both in :meth:`MOON.loss`

What is sent: nothing more than without. A client keeps as many values as it trains, and its steps take about three
times as long, for three more passes of which one has gradients.

Departures:
    * Representation: the paper adds a projection head; fedvlp uses :meth:`.FederatedModule.representation`, by default
      the logits less their mean over classes, because the image features of many methods never change.
    * First round: the paper takes z_prev from the first model, so that z is both attracted and repelled; fedvlp leaves
      the term out.
    * Personal tensors: each of the three representations uses the client's own tensors of that time.
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
from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class MOON(AddOn):
    """Adds the model-contrastive loss to each client's own.

    Args:
        weight: mu, at least 0; the paper tries 0.1, 1, 5 and 10.
        temperature: tau, above 0.
    """

    weight: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.5

    def loss(self, local: LocalContext, inputs: Inputs) -> Tensor | None:
        """The mean over images of mu l_con; None in a client's first round."""
        if not self.weight or not local.kept:
            return None
        module = local.module
        # Neither is trained, so both passes need no graph.
        with torch.no_grad():
            shared = represented(module, local.start, inputs)
            last = represented(module, local.kept, inputs)
        own = module.representation(inputs)
        if not own.requires_grad:
            raise UserError(
                f"{type(module).__name__}.representation does not depend on what the phase trains, so MOON can't "
                "change it. Override local_logits or representation, or leave MOON out of trainer.local.add_ons."
            )
        return self.weight * model_contrast(own, shared, last, self.temperature)

    def finish(self, local: LocalContext, upload: State) -> Finished:
        """Send nothing more, and keep the trained tensors."""
        return Finished(upload, kept=local.trained if self.weight else {})


def model_contrast(
    own: Float[Tensor, "B n"], shared: Float[Tensor, "B n"], last: Float[Tensor, "B n"], temperature: float
) -> Float[Tensor, ""]:
    """Return the mean over images of l_con (Eq. 3) of z, z_glob and z_prev."""
    likeness = torch.stack([F.cosine_similarity(own, shared), F.cosine_similarity(own, last)], 1)  # [B, 2]
    return -(likeness / temperature).log_softmax(1)[:, 0].mean()


def represented(module: FederatedModule, tensors: State, inputs: Inputs) -> Float[Tensor, "B n"]:
    """Return the representations of images by other tensors than those in the module."""
    given = {f"module.{name}": value for name, value in tensors.items()}
    found: Tensor = functional_call(_Representation(module), given, (inputs,), tie_weights=False)
    return found


class _Representation(torch.nn.Module):
    """A method's representation as a forward pass."""

    def __init__(self, module: FederatedModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> Tensor:
        """Return what the method makes of images."""
        return self.module.representation(inputs)
