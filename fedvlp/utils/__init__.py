"""Helpers that know nothing of federated learning: errors, files, locks, seeds, text. Imports nothing of ours."""
