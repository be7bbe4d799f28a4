"""Measurements of speed and memory, each side of a comparison in a process of its own."""
