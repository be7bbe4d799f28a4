"""Types of options with a range, such as ``PositiveInt``. The command line checks them and shows them in its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

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
    # The parser converts to these types, but Python callers pass plain numbers, so type checkers see plain types.
    from jsonargparse import typing

    Names = list  # the parser copies a list[str] once per item, which takes minutes for 10,000 class names
    ClosedFraction = typing.ClosedUnitInterval
    FractionAboveZero = typing.restricted_number_type("FractionAboveZero", float, [(">", 0), ("<=", 1)])
    FractionBelowOne = typing.restricted_number_type("FractionBelowOne", float, [(">=", 0), ("<", 1)])
    NonNegativeFloat = typing.NonNegativeFloat
    NonNegativeInt = typing.NonNegativeInt
    OpenFraction = typing.OpenUnitInterval
    PositiveFloat = typing.PositiveFloat
    PositiveInt = typing.PositiveInt
    # The range that NumPy, PyTorch and Python accept.
    Seed = typing.restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)])
    # Number of CLIP's 80 templates to use.
    Templates = typing.restricted_number_type("Templates", int, [(">=", 1), ("<=", 80)])

Intensity = Literal["full", "percentile", "window"]
"""The values that become black and white: the range of the format, an image's percentiles, or a DICOM file's window."""
