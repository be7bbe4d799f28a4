"""Publication of trained models with a card, on a hub or in a folder."""
