"""Sweeps: methods, held-out domains and seeds as runs, made several at a time, stopped and gone on with."""

from fedvlp.sweep.job import Job
from fedvlp.sweep.plan import Row, Run, Sweep, all_runs, run_name
from fedvlp.sweep.request import make_sweep, read_sweep
from fedvlp.sweep.runner import run_jobs
from fedvlp.sweep.state import Status, SweepFile, lock_sweep

__all__ = [
    "Job",
    "Row",
    "Run",
    "Status",
    "Sweep",
    "SweepFile",
    "all_runs",
    "lock_sweep",
    "make_sweep",
    "read_sweep",
    "run_jobs",
    "run_name",
]
