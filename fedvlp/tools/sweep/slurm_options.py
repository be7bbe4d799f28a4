"""Where a sweep's runs are made: on this machine, or as jobs of Slurm, with what each job asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedvlp.utils.errors import UserError

LAUNCHERS = ("local", "slurm")
OPTIONS = {
    "account": "who is charged",
    "constraint": "features that a node must have",
    "cpus_per_task": "cores of a run, which are also its threads; 1 if not given",
    "exclude": "nodes to leave out",
    "gpus_per_node": "1, or with a type a100:1; no GPU if not given",
    "mem": "memory of a run, such as 16G",
    "partition": "partition, or several as a,b",
    "qos": "quality of service",
    "reservation": "reservation",
    "time": "longest time of a run, such as 04:00:00 or 1-00:00:00",
}
"""Options of ``sbatch``, with underscores, and what each says."""
SETUP = "setup"
FORMS = {
    "cpus_per_task": (r"[1-9]\d*", "a whole number of at least 1"),
    "gpus_per_node": (r"([\w.-]+:)?1", "1 or a type and 1, such as a100:1, since a run uses one GPU"),
    "time": (r"(\d+-)?\d+(:\d\d?){0,2}", "a time in quotes, such as '04:00:00'; YAML reads 4:00:00 as a number"),
}
ONE_LINE = r"[^\x00-\x1f]+"


@dataclass(frozen=True)
class SlurmOptions:
    """What each job asks for.

    Attributes:
        values: options of ``sbatch``, with underscores in their names.
        setup: lines of shell that come before the run, such as to load modules.
    """

    values: Mapping[str, str]
    setup: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        """How many threads a run computes with: as many as it has cores."""
        return int(self.values.get("cpus_per_task", 1))

    @property
    def arguments(self) -> list[str]:
        """Those of ``sbatch``.

        >>> SlurmOptions({"gpus_per_node": "1"}).arguments
        ['--gpus-per-node=1']
        """
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.values.items()]


def read_launcher(given: Any) -> SlurmOptions | None:
    """Returns what jobs of Slurm ask for; None if the runs are made on this machine.

    Args:
        given: ``local``, ``slurm``, or a mapping with that ``name`` and options.

    Raises:
        UserError: for another launcher, or an option that it has not.
    """
    launcher = {"name": given} if isinstance(given, str) else given
    if not isinstance(launcher, dict) or launcher.get("name") not in LAUNCHERS:
        raise UserError(f"Expected launcher to be local, slurm or a mapping with such a name; got {given!r}.")
    options = {name: value for name, value in launcher.items() if name != "name" and value is not None}
    if launcher["name"] == "local":
        if options:
            raise UserError(f"The launcher local has no option {next(iter(options))!r}. Use --launcher slurm, or none.")
        return None
    for name in options:
        if name not in (*OPTIONS, SETUP):
            raise UserError(f"The launcher slurm has no option {name!r}; it has {', '.join((*OPTIONS, SETUP))}.")
    setup = options.pop(SETUP, ())
    lines = [setup] if isinstance(setup, str) else setup
    if not isinstance(lines, (list, tuple)) or not all(isinstance(line, str) for line in lines):
        raise UserError(f"Expected setup of the launcher slurm to be lines of shell; got {setup!r}.")
    return SlurmOptions({name: _value(name, value) for name, value in options.items()}, tuple(lines))


def _value(name: str, value: Any) -> str:
    """Returns the value of an option as ``sbatch`` takes it."""
    form, expected = FORMS.get(name, (ONE_LINE, "a word or a number"))
    is_right_type = isinstance(value, str) or (type(value) is int and name != "time")
    if not is_right_type or not re.fullmatch(form, str(value)):
        raise UserError(f"Expected {name} of the launcher slurm to be {expected}; got {value!r}.")
    return str(value)
