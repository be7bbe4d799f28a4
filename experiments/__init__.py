"""Studies, each with its command, hardware and results."""
