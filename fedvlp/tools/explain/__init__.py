"""Explanations of trained methods in pictures and words. Only ``methods.py`` depends on specific methods."""
