"""CLIP's two transformers, run block by block on weights that stay frozen. Imports utils."""
