"""Harm by hostile clients, and protection by robust aggregators."""
