"""Sweeps: methods, held-out domains and seeds as runs, several at a time; called again, a sweep resumes."""

from fedvlp.tools.sweep.jobs import Job, Status, run_jobs
from fedvlp.tools.sweep.plan import Sweep, SweepMethod, all_jobs, fit_arguments, make_sweep, read_sweep, run_name
from fedvlp.tools.sweep.progress import SweepProgress
from fedvlp.tools.sweep.slurm import SlurmArray, SlurmOptions, read_launcher

__all__ = [
    "Job",
    "SlurmArray",
    "SlurmOptions",
    "Status",
    "Sweep",
    "SweepMethod",
    "SweepProgress",
    "all_jobs",
    "fit_arguments",
    "make_sweep",
    "read_launcher",
    "read_sweep",
    "run_jobs",
    "run_name",
]
