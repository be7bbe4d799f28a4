"""Roles of evaluation splits."""

ROLES = {"validation": "validation", "test": "test", "held_out": "held-out"}
"""Each role as metrics name it, and as a reader sees it."""
