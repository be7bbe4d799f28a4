"""Figures and pages of finished runs, and how they are drawn. Imports core, results and utils."""

from fedvlp.results.figures import accuracy_figure, communication_figure
from fedvlp.results.style import Picture
from fedvlp.tools.report.bars import domain_bars, seed_boxes
from fedvlp.tools.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve

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
