"""Names of options that rows use and that may be renamed, in one place."""

from __future__ import annotations

COLLECTIVE_LIMIT = "--trainer.runtime.collective_timeout"
"""Seconds that a process waits for another."""
PRIVATE_RULE = "--trainer.server.aggregation=DPFedAvg"
"""The rule that is accounted for; its options follow."""
EPSILON = "privacy/epsilon"
"""The column of metrics.csv with what was spent."""
STATUS = ("status",)
"""The command that says how a run stands; a run's folder follows."""
EVENTS = "events.jsonl"
"""The file of a run's events."""
