"""Class names as CLIP's text tower should read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def clean_class_name(name: str) -> str:
    """Returns a folder's name as words: `_` and `-` become spaces, white space is squeezed, case is kept.

    Example:
        >>> clean_class_name("Alarm_Clock"), clean_class_name("t-shirt")
        ('Alarm Clock', 't shirt')
    """
    return " ".join(name.replace("_", " ").replace("-", " ").split())


def clean_class_names(names: Sequence[str], overrides: Mapping[str, str] | None = None) -> list[str]:
    """Returns every class's name as words, in the order given; what `overrides` names is taken from there, as it is.

    Args:
        names: Class names as they stand in the data, for example folders' names.
        overrides: Words to use instead, by the name in the data or by its cleaned form.

    Example:
        >>> clean_class_names(["Postit_Notes", "TV"], {"TV": "television"})
        ['Postit Notes', 'television']
    """
    chosen = overrides or {}
    return [chosen.get(name, chosen.get(clean_class_name(name), clean_class_name(name))) for name in names]
