"""Differences between exported files and methods."""
