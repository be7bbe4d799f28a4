"""What hostile clients do to the methods, and what robust rules save."""
