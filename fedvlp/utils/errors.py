"""The exceptions for what a user can mend: mistakes, and faults of the machine."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: says what was expected, what was found and what to do next.

    The command line prints its message alone, without a traceback, and exits with code 1.
    """


class MachineError(UserError):
    """A fault of the machine, such as a process that was killed: no client is to blame, and the run ends."""
