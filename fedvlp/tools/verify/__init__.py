"""Entries of a leaderboard: models that are measured again, and the page of those that are verified."""
