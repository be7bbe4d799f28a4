"""Batches in the form that a module wants. Imports files, cache and core."""
