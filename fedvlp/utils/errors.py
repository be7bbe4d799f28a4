"""The one exception for mistakes that a user can mend."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: says what was expected, what was found and what to do next.

    The command line prints its message alone, without a traceback, and exits with code 1.
    """
