"""The papers' main tables as sweeps: settings, printed numbers, computed cost."""
