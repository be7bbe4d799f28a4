"""fedvlp-small, a bundled CLIP: its training on icons, and its evaluation."""
