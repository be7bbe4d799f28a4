"""Errors for what a user can correct, and what messages offer instead: the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


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
    """Raises a mistake of the user unchanged, not as the parser wraps it.

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


def nearest_names(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Returns the known names that are nearest to a name, without regard to case, the nearest first.

    Args:
        name: what was written.
        known: names that would have been right.
        count: at most so many are returned.
        cutoff: how alike they must be, in [0, 1]; 1 is equal.

    >>> nearest_names("Sketsch", ["photo", "sketch"])
    ['sketch']
    """
    by_folded = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), list(by_folded), n=count, cutoff=cutoff)
    return [by_folded[each] for each in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``Did you mean 'x'?`` for the nearest known name; an empty string if none is near.

    >>> did_you_mean("lenght", ["length", "depth"])
    "Did you mean 'length'?"
    >>> did_you_mean("lenght", ["depth"])
    ''
    """
    near = nearest_names(name, known)
    return f"Did you mean {near[0]!r}?" if near else ""


def did_you_mean_or_choose(name: str, known: Iterable[str]) -> str:
    """Returns a question that offers the nearest known name; if none is near, all of them.

    >>> did_you_mean_or_choose("Sketches", ["photo", "sketch"])
    "Did you mean 'sketch'?"
    >>> did_you_mean_or_choose("x", ["photo", "sketch"])
    'Choose from photo, sketch.'
    """
    names = list(known)
    return did_you_mean(name, names) or f"Choose from {', '.join(names)}."
