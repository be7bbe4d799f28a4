"""Finished runs, read from their folders, and what they have in common."""

from fedvlp.results.labels import row_labels
from fedvlp.results.record import Record, load_record
from fedvlp.results.search import find_records

__all__ = ["Record", "find_records", "load_record", "row_labels"]
