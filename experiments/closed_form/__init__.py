"""Classifiers in closed form, a linear probe, and prompts, on the same images."""
