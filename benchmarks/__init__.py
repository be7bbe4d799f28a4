"""Measurements of speed and memory, with each side of a comparison in a separate process."""
