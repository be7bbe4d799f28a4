"""Zero-shot CLIP, or whatever a method names as its baseline, measured once on the same splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlp.core.predictions import Predictions
from fedvlp.training.callback import FederationCallback, RunView


class Baseline(FederationCallback):
    """Measures the method's untrained baseline before training.

    Attributes:
        scores: accuracies in percent, named as those of a round; empty if the method names no baseline.
        predictions: by split, the predicted class of each image.
    """

    def __init__(self) -> None:
        self.scores: dict[str, float] = {}
        self.predictions: Mapping[str, Predictions] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Measures the baseline."""
        federation: RunView = trainer
        baseline = pl_module.baseline()
        if baseline is not None:
            baseline = federation.fabric.to_device(baseline)
            self.scores = federation.evaluate(baseline, baseline.shared_state(), {})
            self.predictions = federation.predictions
