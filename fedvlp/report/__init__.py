"""Tables and figures of runs."""

from fedvlp.report.figures import accuracy_figure, communication_figure
from fedvlp.report.selection import best_round, last_round
from fedvlp.report.table import accuracy_table, text_table

__all__ = [
    "accuracy_figure",
    "accuracy_table",
    "best_round",
    "communication_figure",
    "last_round",
    "text_table",
]
