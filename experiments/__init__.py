"""Studies: each with its command, its hardware and its numbers."""
