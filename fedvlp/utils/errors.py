"""Errors that a user can correct, checks that raise them, and suggestions of similar names."""

import math
from collections.abc import Iterable, Iterator, Sequence
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
"""Parts of PyTorch's messages if a device, its libraries or the CPU run out of memory."""


class UserError(ValueError):
    """Bad input: the message states what was expected, what was found and what to do next.

    The command line prints only the message, without a traceback, and exits with code 1.
    """


class UsageError(UserError):
    """A wrong command or option; the command line exits with code 2."""


class MachineError(UserError):
    """A fault of the machine rather than a client, such as a killed process; it ends the run."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the CPU ran out of memory."""
    # By message, because not all of these PyTorch errors have their own type, and commands do not import PyTorch.
    is_torchs = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    return is_torchs or isinstance(error, MemoryError)


def escape_control_chars(text: str) -> str:
    r"""Escape control characters of terminals, e.g. in file names; line breaks stay.

    >>> escape_control_chars("photo \x1b[31m.png")
    'photo \\x1b[31m.png'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def shorten(names: Sequence[str], most: int = 10) -> str:
    """List the first names and count the rest.

    >>> shorten(["a", "b", "c"], most=2)
    'a, b ... and 1 more'
    """
    return ", ".join(names[:most]) + (f" ... and {len(names) - most} more" if len(names) > most else "")


def to_one_line(text: str) -> str:
    r"""Escape control characters and line breaks, so that untrusted text can't add lines.

    >>> to_one_line("study\nsignature: one")
    'study\\nsignature: one'
    """
    return escape_control_chars(text).replace("\n", "\\n")


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Raise the original UserError instead of the ValueError that a parser wraps around it."""
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
    """Find up to ``count`` valid names with a similarity of at least ``cutoff`` in [0, 1], ignoring case."""
    by_folded_name = {option.casefold(): option for option in valid}
    matches = get_close_matches(name.casefold(), list(by_folded_name), n=count, cutoff=cutoff)
    return [by_folded_name[match] for match in matches]


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Suggest the nearest valid name, as ``Did you mean 'x'?``; an empty string if none is near.

    >>> did_you_mean("lenght", ["length", "depth"]), did_you_mean("lenght", ["depth"])
    ("Did you mean 'length'?", '')
    """
    near = nearest_names(name, valid)
    return f"Did you mean {near[0]!r}?" if near else ""


def did_you_mean_or_choose(name: str, valid: Iterable[str]) -> str:
    """Suggest the nearest valid name, or list all of them if none is near."""
    names = list(valid)
    return did_you_mean(name, names) or f"Choose from {', '.join(names)}."


def check_range(name: str, value: float | None, range_type: Any) -> None:
    """Raise UserError if an option is infinite or outside a type of ``utils.ranges``; None is valid.

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
    # Ranges without an upper limit include infinity.
    if math.isinf(value):
        raise UserError(f"Expected a finite {name}, got {value}.")


def check_ranges(options: object) -> None:
    """Raise UserError if a number in a dataclass is out of range. Only the command line checks ranges by itself."""
    for name, hint in get_type_hints(type(options)).items():
        # The arguments of ``PositiveInt | None`` include the range; a value of None is valid.
        for part in (hint, *get_args(hint)):
            is_number = isinstance(part, type) and issubclass(part, (int, float))
            if is_number and part not in (bool, int, float):
                check_range(f"{type(options).__name__}.{name}", getattr(options, name), part)
