"""Communication of the methods, counted, next to the papers' numbers."""
