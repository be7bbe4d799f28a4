"""Errors that a user can correct, checks that raise them, and the nearest known name for messages."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

OUT_OF_MEMORY = (
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
)
"""What PyTorch says where a device, its libraries or the CPU have no memory left, or it knows that none can do."""


class UserError(ValueError):
    """Bad input: says what was expected, what was found and what to do next.

    The command line prints its message alone, without a traceback, and exits with code 1.
    """


class UsageError(UserError):
    """A wrong command or option; the command line exits with code 2."""


class MachineError(UserError):
    """A fault of the machine, such as a process that was killed: no client is to blame, and the run ends."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was not enough, of a device or of the CPU."""
    # By its words: of PyTorch's errors only some have a type of their own, and commands import no PyTorch for this.
    is_torchs = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    return is_torchs or isinstance(error, MemoryError)


def escape_control_chars(text: str) -> str:
    r"""Escape what a terminal would act on instead of showing, such as in a file's name; ends of lines stay.

    >>> escape_control_chars("photo \x1b[31m.png")
    'photo \\x1b[31m.png'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def in_one_line(text: str) -> str:
    r"""Escape what a terminal would act on, line breaks included, so that a text from elsewhere can't add lines.

    >>> in_one_line("study\nsignature: one")
    'study\\nsignature: one'
    """
    return escape_control_chars(text).replace("\n", "\\n")


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Raise a UserError unchanged, in place of the ValueError that a parser wraps around it."""
    try:
        yield
    except ValueError as error:
        # jsonargparse wraps an error once for each level of the config.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__
        raise


def nearest_names(name: str, valid: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Find at most ``count`` valid names that are alike by ``cutoff`` in [0, 1], whatever their case; nearest first."""
    by_folded = {each.casefold(): each for each in valid}
    return [by_folded[each] for each in get_close_matches(name.casefold(), list(by_folded), n=count, cutoff=cutoff)]


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?`` for the nearest valid name; an empty string if none is near.

    >>> did_you_mean("lenght", ["length", "depth"]), did_you_mean("lenght", ["depth"])
    ("Did you mean 'length'?", '')
    """
    near = nearest_names(name, valid)
    return f"Did you mean {near[0]!r}?" if near else ""


def did_you_mean_or_choose(name: str, valid: Iterable[str]) -> str:
    """Ask for the nearest valid name, or offer all of them if none is near."""
    names = list(valid)
    return did_you_mean(name, names) or f"Choose from {', '.join(names)}."


def check_range(name: str, value: float | None, range_type: Any) -> None:
    """Raise UserError if a Python caller's option is outside a type of ``utils.ranges``, or infinite; None passes.

    >>> from jsonargparse.typing import NonNegativeInt
    >>> check_range("rounds", -1, NonNegativeInt)
    Traceback (most recent call last):
    fedvlp.utils.errors.UserError: rounds: -1 does not conform to restriction v>=0.
    """
    if value is None:
        return
    try:
        range_type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name}: {error}.") from None
    # Infinity is within a range that has no upper end.
    if math.isinf(value):
        raise UserError(f"Expected a finite {name}, got {value}.")


def check_ranges(options: object) -> None:
    """Raise UserError if a number of a dataclass is out of its range, which only the command line has checked."""
    for name, hint in get_type_hints(type(options)).items():
        # Of ``PositiveInt | None`` the first is the range; what may be None is not checked then.
        for part in (hint, *get_args(hint)):
            is_number = isinstance(part, type) and issubclass(part, (int, float))
            if is_number and part not in (bool, int, float):
                check_range(f"{type(options).__name__}.{name}", getattr(options, name), part)
