"""Figures and pages of finished runs. Imports core, results and utils."""

from fedvlp.tools.report.figures import (
    accuracy_over_communication,
    accuracy_over_rounds,
    domain_bars,
    option_curve,
    seed_boxes,
)

__all__ = ["accuracy_over_communication", "accuracy_over_rounds", "domain_bars", "option_curve", "seed_boxes"]
