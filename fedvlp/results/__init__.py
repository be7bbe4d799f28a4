"""Finished runs, read from their folders, and tables of them. Imports core and utils; knows no HTML."""

from fedvlp.results.record import Record, find_records, load_record, load_runs

__all__ = ["Record", "find_records", "load_record", "load_runs"]
