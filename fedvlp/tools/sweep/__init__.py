"""Sweeps over methods, held-out domains and seeds, with several runs at a time. A repeated call resumes."""
