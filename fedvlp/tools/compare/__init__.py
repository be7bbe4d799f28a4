"""Tables of finished runs, next to published numbers."""
