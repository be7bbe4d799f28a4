"""Leaderboard entries: evaluating their models again, and the page of verified entries."""
