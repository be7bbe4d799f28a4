"""Mistakes in the arguments of a data set, found before any image is read."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from fedvlp.utils.errors import UserError, did_you_mean_or_choose

NOT_BOUND = (
    "The data do not know how the module wants its images. Give it a `transform` (PIL image to tensor), "
    "or call bind(transform=...)."
)


def choose_held_out(wanted: Sequence[str], domains: Sequence[str]) -> list[str]:
    """Returns the held-out domains, sorted and each once.

    Raises:
        UserError: if one does not exist, or none would be left to train.
    """
    # File systems and keyboards keep accents in different forms.
    composed = {unicodedata.normalize("NFC", name): name for name in domains}
    names = sorted({composed.get(unicodedata.normalize("NFC", name), name) for name in wanted})
    for name in names:
        if name not in domains:
            found = ", ".join(domains)
            hint = did_you_mean_or_choose(name, domains)
            raise UserError(f"Expected held_out to name one of the domains ({found}); got {name!r}. {hint}")
    if len(names) == len(domains):
        raise UserError(f"All {len(domains)} domains are held out, so none is left to train. Hold out fewer.")
    return names


def mapped_names(names: Sequence[str], replacements: dict[str, str]) -> list[str]:
    """Returns the class names with replacements.

    Raises:
        UserError: if a replacement is for a class that does not exist.
    """
    for name in replacements:
        if name not in names:
            hint = did_you_mean_or_choose(name, names)
            raise UserError(f"class_names_map renames {name!r}, but there is no such class. {hint}")
    return [replacements.get(name, name) for name in names]


def check_utf8(names: Iterable[str]) -> None:
    """Raises UserError for a name that is no UTF-8: no config can hold it, so nobody could go on with what was trained.

    Args:
        names: of domains and classes.
    """
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"Expected names of domains and classes in UTF-8; {name!r} is none. Rename that folder."
            ) from error
