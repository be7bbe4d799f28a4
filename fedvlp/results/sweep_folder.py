"""The sweep that made a run, by the folder that both lie in."""

from __future__ import annotations

from pathlib import Path

SWEEP_FILE = "sweep.json"


def group_name(folder: Path, method: str, data: str) -> str:
    """Returns what a run stands under among others: the name of its sweep's folder, or else its method and data.

    Args:
        folder: the run's.
        method: name of the method's class.
        data: name of the data.
    """
    sweeps = [parent.name for parent in folder.absolute().parents if (parent / SWEEP_FILE).is_file()]
    return sweeps[0] if sweeps else f"{method}, {data}"
