"""A trained method as one function from images to logits: what is exported."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.core.module import FederatedModule


class ExportedClassifier(nn.Module):
    """Classifies as ``predict`` does: with what all clients share, in evaluation.

    Args:
        method: the method, with the tensors that it is to classify with; put into evaluation mode.
    """

    def __init__(self, method: FederatedModule) -> None:
        super().__init__()
        self.method = method
        self.eval()

    def forward(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        """Returns the logits of images, as CLIP's evaluation transform puts them out."""
        with self.method.shared_part_alone():
            logits: Tensor = self.method(images)
        return logits
