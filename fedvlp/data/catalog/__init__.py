"""What is known of the field's data sets: facts that need no image, and no library, to be read."""

from __future__ import annotations

from fedvlp.data.catalog.class_name_maps import ClassNameStyle, prompt_names
from fedvlp.data.catalog.coop import COOP_DATA_SETS
from fedvlp.data.catalog.description import Description, plain
from fedvlp.data.catalog.families import FAMILIES
from fedvlp.data.catalog.forms import SplitName
from fedvlp.data.catalog.known import DOMAIN_DATA_SETS
from fedvlp.data.catalog.small_images import SMALL_IMAGE_DATA_SETS

DESCRIPTIONS: tuple[Description, ...] = (*DOMAIN_DATA_SETS, *FAMILIES, *COOP_DATA_SETS, *SMALL_IMAGE_DATA_SETS)

__all__ = ["DESCRIPTIONS", "ClassNameStyle", "Description", "SplitName", "plain", "prompt_names"]
