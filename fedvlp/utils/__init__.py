"""Helpers without federated learning: errors, files, locks, seeds, text. Imports no other part of fedvlp."""
