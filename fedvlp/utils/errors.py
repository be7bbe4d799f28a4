"""The exceptions for what a user can mend: mistakes, and faults of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Bad input: says what was expected, what was found and what to do next.

    The command line prints its message alone, without a traceback, and exits with code 1.
    """


class MachineError(UserError):
    """A fault of the machine, such as a process that was killed: no client is to blame, and the run ends."""


def escape_control_chars(text: str) -> str:
    r"""Escapes what a terminal would act on instead of showing, such as in a file's name; ends of lines stay.

    >>> escape_control_chars("photo \x1b[31m.png")
    'photo \\x1b[31m.png'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Lets a mistake of the user come out as it was raised, not as the parser wraps it.

    Raises:
        UserError: in place of a ValueError that it caused.
    """
    try:
        yield
    except ValueError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__
        raise
