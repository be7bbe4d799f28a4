"""Measures the trained models of others again, and refuses claims that do not hold."""
