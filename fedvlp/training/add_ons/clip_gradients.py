"""Gradient clipping, as Lightning's ``gradient_clip_val`` does it."""

from __future__ import annotations

from dataclasses import dataclass

from fedvlp.training.add_ons.base import AddOn, LocalContext
from fedvlp.utils.ranges import PositiveFloat


@dataclass(frozen=True)
class ClipGradients(AddOn):
    """Shortens the gradient of each step, of all tensors that a client trains together.

    Args:
        max_norm: The longest gradient, as Euclidean norm, above 0.
    """

    max_norm: PositiveFloat

    needs_average = False

    def after_backward(self, local: LocalContext) -> None:
        """Clips; a gradient that is not finite stays so, for the update to be refused."""
        if local.optimizer is not None:
            wrapped = local.optimizer.wrapped
            local.fabric.clip_gradients(local.module, wrapped, max_norm=self.max_norm, error_if_nonfinite=False)
