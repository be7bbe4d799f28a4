"""Training of a federation, round by round, for any method. Imports core, runs and utils."""
