"""How the server makes one state of several clients' uploads: means, robust aggregators, optimizers.

A strategy says what is combined, and its aggregator how. ``trainer.server.aggregation`` puts one aggregator into all
strategies that average.
"""
