"""Finished runs, read from their folders: records, rounds, predictions, figures. Imports only core and utils."""

from fedvlp.results.record import Record, find_records, load_record, load_runs

__all__ = ["Record", "find_records", "load_record", "load_runs"]
