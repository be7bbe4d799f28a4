"""Sweeps: methods, held-out domains and seeds as runs, several at a time; called again, a sweep resumes."""

from fedvlp.tools.sweep.jobs import Job, SlurmArray, Status, SweepProgress, run_jobs
from fedvlp.tools.sweep.plan import Sweep, SweepMethod, fit_arguments, make_sweep, read_sweep, run_name

__all__ = [
    "Job",
    "SlurmArray",
    "Status",
    "Sweep",
    "SweepMethod",
    "SweepProgress",
    "fit_arguments",
    "make_sweep",
    "read_sweep",
    "run_jobs",
    "run_name",
]
