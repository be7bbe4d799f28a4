"""Number types with a range, such as ``PositiveInt``, which the command line checks and its help shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Names = list[str]
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

    Names = list  # the parser copies a list[str] once for each item, which takes minutes for 10,000 class names
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
