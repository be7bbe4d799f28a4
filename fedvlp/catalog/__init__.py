"""What is known of the field's data sets: facts that need no image, and no library, to be read."""

from __future__ import annotations

from fedvlp.catalog.class_name_maps import ClassNameStyle, prompt_names
from fedvlp.catalog.description import Description, SplitName, plain
from fedvlp.catalog.known import DESCRIPTIONS

__all__ = ["DESCRIPTIONS", "ClassNameStyle", "Description", "SplitName", "plain", "prompt_names"]
