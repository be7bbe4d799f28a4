"""Sweeps: methods, held-out domains and seeds as runs, made several at a time, which can be stopped and resumed.

Knows how to make runs and not how a run is trained, so it imports neither methods nor data nor the commands.
"""

from fedvlp.tools.sweep.job import Job
from fedvlp.tools.sweep.plan import Run, Sweep, SweepMethod, all_runs, fit_arguments, run_name
from fedvlp.tools.sweep.progress import SweepProgress
from fedvlp.tools.sweep.request import make_sweep, read_sweep
from fedvlp.tools.sweep.runner import run_jobs
from fedvlp.tools.sweep.slurm_options import SlurmOptions, read_launcher
from fedvlp.tools.sweep.slurm_queue import SlurmQueue
from fedvlp.tools.sweep.slurm_runner import QueuedJobs
from fedvlp.tools.sweep.state import Status, SweepFile, lock_sweep
from fedvlp.tools.sweep.summary import print_summary

__all__ = [
    "Job",
    "QueuedJobs",
    "Run",
    "SlurmOptions",
    "SlurmQueue",
    "Status",
    "Sweep",
    "SweepFile",
    "SweepMethod",
    "SweepProgress",
    "all_runs",
    "fit_arguments",
    "lock_sweep",
    "make_sweep",
    "print_summary",
    "read_launcher",
    "read_sweep",
    "run_jobs",
    "run_name",
]
