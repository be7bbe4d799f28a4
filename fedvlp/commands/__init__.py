"""The command line: one file for each command. May import everything; nothing imports it."""
