"""Finished runs, read from their folders, and tables of them. Imports core and utils; knows no figures and no HTML."""

from fedvlp.results.labels import row_labels
from fedvlp.results.record import Record, load_record
from fedvlp.results.search import find_records

__all__ = ["Record", "find_records", "load_record", "row_labels"]
