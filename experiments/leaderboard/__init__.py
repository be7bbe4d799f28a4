"""Entries of the leaderboard on StyledShapes, with which everybody can begin."""
