"""Aggregators, which combine several clients' uploads: means, robust aggregators, server optimizers.

A strategy chooses the tensors to combine, and its aggregator combines them. ``trainer.server.aggregation`` replaces the
aggregator of all strategies that average.
"""
