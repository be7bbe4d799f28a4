"""Trained models as plain classifiers, loaded from a file or a hub."""
