"""Scores of predictions beside accuracy: of classes, of confidence, and intervals over images."""
