"""Hyperparameter tuning: trials, selection on source validation, and runs of the selected options."""
