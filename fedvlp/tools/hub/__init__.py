"""Models on a hub or in a folder: cards, and pushing."""
