"""Number types with a range, such as ``PositiveInt``, which the command line checks and its help shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fedvlp.utils.errors import UserError

Names = list[str]

if TYPE_CHECKING:
    ClosedFraction = float
    FractionAboveZero = float
    FractionBelowOne = float
    NonNegativeFloat = float
    NonNegativeInt = int
    OpenFraction = float
    PositiveFloat = float
    PositiveInt = int
    Seed = int
    Templates = int
else:
    # The parser makes numbers of these types, Python callers pass plain ones; so type checkers see the plain types.
    from jsonargparse import typing

    ClosedFraction = typing.ClosedUnitInterval
    FractionAboveZero = typing.restricted_number_type("FractionAboveZero", float, [(">", 0), ("<=", 1)])
    FractionBelowOne = typing.restricted_number_type("FractionBelowOne", float, [(">=", 0), ("<", 1)])
    NonNegativeFloat = typing.NonNegativeFloat
    NonNegativeInt = typing.NonNegativeInt
    OpenFraction = typing.OpenUnitInterval
    PositiveFloat = typing.PositiveFloat
    PositiveInt = typing.PositiveInt
    # What NumPy, PyTorch and Python take alike.
    Seed = typing.restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)])
    # How many of CLIP's 80 templates.
    Templates = typing.restricted_number_type("Templates", int, [(">=", 1), ("<=", 80)])


def check_range(name: str, value: float | None, range_type: Any) -> None:
    """Checks an option of one of the types above that a Python caller passed; None is left to the option's own meaning.

    Raises:
        UserError: if the number is outside the range, or infinite.

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
    """Checks all numbers of a dataclass against their types; a caller in Python has had none of them checked.

    Raises:
        UserError: if a number is out of its range.
    """
    for name, hint in get_type_hints(type(options)).items():
        # Of ``PositiveInt | None`` the first is the range; what may be None is not checked then.
        for part in (hint, *get_args(hint)):
            is_number = isinstance(part, type) and issubclass(part, (int, float))
            if is_number and part not in (bool, int, float):
                check_range(f"{type(options).__name__}.{name}", getattr(options, name), part)
