"""The command line: one file for each command, and what they share. May import everything; only testing imports it."""
