"""Figures and pages of finished runs, and how they are drawn. Imports core, results and utils."""

from fedvlp.report.bars import domain_bars, seed_boxes
from fedvlp.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve
from fedvlp.report.figures import accuracy_figure, communication_figure
from fedvlp.report.style import Picture

__all__ = [
    "Picture",
    "accuracy_figure",
    "accuracy_over_communication",
    "accuracy_over_rounds",
    "communication_figure",
    "domain_bars",
    "option_curve",
    "seed_boxes",
]
