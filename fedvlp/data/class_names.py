"""Names of classes: checks, replacements, and spellings of one name."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedvlp.data.rows import ImageFile, split_labels
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError, did_you_mean_or_choose


def check_class_names(names: Sequence[str], domains: Sequence[str] = ()) -> None:
    """Raise UserError if there are fewer than two classes, or a name of a class or domain is not valid UTF-8."""
    for name in (*names, *domains):
        if name.encode("utf-8", "ignore").decode() != name:
            raise UserError(f"Expected names of classes and domains in UTF-8; got {name!r}. Rename its folder.")
    if len(names) < 2:
        raise UserError(
            f"Expected two classes or more; got {', '.join(map(repr, names)) or 'none'}. A method learns to "
            "distinguish classes, so add the others."
        )


def map_names(names: Sequence[str], replacements: dict[str, str]) -> list[str]:
    """Replace class names; raise UserError if a class does not exist, or if two classes get the same name."""
    for name in replacements:
        if name not in names:
            hint = did_you_mean_or_choose(name, names)
            raise UserError(f"class_names_map renames {name!r}, but there is no such class. {hint}")
    own_names: dict[str, list[str]] = defaultdict(list)
    for name in names:
        own_names[fold_spelling(replacements.get(name, name))].append(name)
    for folded, same in own_names.items():
        if len(same) > 1 and not replacements.keys().isdisjoint(same):
            raise UserError(
                f"Expected class_names_map to give each class its own name; {' and '.join(same)} are both called "
                f"{folded!r}. Name them differently, or put their images into one folder if they are one class."
            )
    return [replacements.get(name, name) for name in names]


def fold_spelling(name: str) -> str:
    """Normalise a class name's capitals and separators, which prompts ignore."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def read_class_names_map(value: dict[Any, Any] | str | None) -> dict[str, str]:
    """Read the option ``class_names_map``, a mapping or the path of a file; numbers become text."""
    mapping = read_yaml(Path(value).expanduser()) if isinstance(value, str) else value or {}
    entries = [*mapping, *mapping.values()] if isinstance(mapping, dict) else [None]
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            raise UserError(
                f"Expected class_names_map to map names to names, such as {{tv: television}}; got {entry!r} in "
                f"{value!r}. YAML reads yes, no, on and off as true or false unless they are in quotes."
            )
    return {str(name): str(replacement) for name, replacement in mapping.items()}


def read_class_names(file: str) -> list[str]:
    """Read the names of a file with a class name per line."""
    return [line for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines() if line]


def describe_ids(names: Sequence[str]) -> str:
    """Describe in one line the class names that are numbers, WordNet ids or numbered; empty if there are none."""
    ids = [name for name in names if re.fullmatch(r"\d+|n\d{8}|\d+[._]\s*\D.*", name)]
    if not ids:
        return ""
    return (
        f"{len(ids)} of {len(names)} class names are numbers or ids, such as {ids[0]!r}, and prompts contain them. "
        "Set data.class_names_map to a mapping, or to a YAML file with lines such as n01440764: tench."
    )


def spellings(
    domains: Mapping[str, Sequence[ImageFile]], others: Collection[str] = (), several_labels: bool = False
) -> list[list[str]]:
    """List the names of each class with several spellings, the most frequent name first; skip names in ``others``.

    Names that differ only in capitals, spaces, ``_`` and ``-`` are spellings of one class. With ``several_labels``,
    the classes are the labels.
    """
    names = [file.class_name for file in chain.from_iterable(domains.values())]
    counts = Counter(chain.from_iterable(map(split_labels, names)) if several_labels else names)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(counts.keys() - set(others), key=lambda name: (-counts[name], name)):
        groups[fold_spelling(name)].append(name)
    return [names for names in groups.values() if len(names) > 1]
