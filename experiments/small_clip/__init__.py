"""fedvlp-small, a CLIP that comes with the package: how it was trained on icons, and what it knows."""
