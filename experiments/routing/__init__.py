"""Dependence of TRIP's routes on the image, and on the start of its clustering."""
