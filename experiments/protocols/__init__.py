"""All protocols with the same methods, in one table per protocol."""
