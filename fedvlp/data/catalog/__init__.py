"""What is known of the published data sets: facts that need no image, and no library, to be read."""

from __future__ import annotations

from fedvlp.data.catalog.description import (
    DATA_SETS,
    DESCRIPTIONS,
    ClassNameStyle,
    Description,
    SplitName,
    normalise_name,
    prompt_names,
)

__all__ = [
    "DATA_SETS",
    "DESCRIPTIONS",
    "ClassNameStyle",
    "Description",
    "SplitName",
    "normalise_name",
    "prompt_names",
]
