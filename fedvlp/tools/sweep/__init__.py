"""Sweeps: methods, held-out domains and seeds as runs, several at a time; called again, a sweep resumes."""
