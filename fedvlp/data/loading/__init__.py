"""Batches in the form that a module wants. Imports files, cache, splits and core."""
