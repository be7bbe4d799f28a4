"""Models on a hub or in a folder: cards, pushing, and prompts converted from Dassl."""
