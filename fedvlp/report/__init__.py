"""Tables and figures of runs."""

from fedvlp.report.bars import domain_bars, seed_boxes
from fedvlp.report.curves import accuracy_over_communication, accuracy_over_rounds, option_curve
from fedvlp.report.figures import accuracy_figure, communication_figure
from fedvlp.report.selection import best_round, last_round
from fedvlp.report.style import Picture
from fedvlp.report.table import accuracy_table, text_table

__all__ = [
    "Picture",
    "accuracy_figure",
    "accuracy_over_communication",
    "accuracy_over_rounds",
    "accuracy_table",
    "best_round",
    "communication_figure",
    "domain_bars",
    "last_round",
    "option_curve",
    "seed_boxes",
    "text_table",
]
