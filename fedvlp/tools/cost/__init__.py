"""Communication costs of methods, counted without training."""
