"""What is known of the published data sets: facts that need no image, and no library, to be read.

``data_sets/NAME.toml`` has the facts of a data set, ``classes/NAME.csv`` its classes; ``reader`` makes a
:class:`Description` of both.
"""

from __future__ import annotations

from fedvlp.data.catalog.description import ClassNameStyle, Description, SplitName, normalise_name
from fedvlp.data.catalog.reader import DATA_SETS, DESCRIPTIONS, prompt_names

__all__ = [
    "DATA_SETS",
    "DESCRIPTIONS",
    "ClassNameStyle",
    "Description",
    "SplitName",
    "normalise_name",
    "prompt_names",
]
