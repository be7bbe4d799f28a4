"""The papers' main tables as sweeps, with settings, printed numbers and computed costs."""
