"""Mistakes in the arguments of a data set, found before any image is read."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from fedvlp.data.split_rule import SplitRule
from fedvlp.utils.errors import UserError
from fedvlp.utils.suggestions import did_you_mean_or_choose

NOT_BOUND = (
    "The data do not know how the module wants its images. Give it a `transform` (PIL image to tensor), "
    "or call bind(transform=...)."
)


def check_arguments(
    batch_size: int,
    eval_batch_size: int,
    rule: SplitRule,
    augmentation: str,
    num_workers: int,
) -> None:
    """Raises UserError for the first argument that is out of its range."""
    if batch_size < 1 or eval_batch_size < 1:
        raise UserError(f"Expected batch_size and eval_batch_size of at least 1; got {batch_size}, {eval_batch_size}.")
    if not 0 < rule.validation_fraction < 1:
        raise UserError(f"Expected a validation_fraction between 0 and 1, such as 0.2; got {rule.validation_fraction}.")
    if not 0 <= rule.test_fraction < 1:
        raise UserError(f"Expected a test_fraction of 0, or below 1, such as 0.2; got {rule.test_fraction}.")
    if rule.shots is not None and rule.shots < 1:
        raise UserError(f"Expected shots of at least 1, or null for all images; got {rule.shots}.")
    if rule.seed < 0 or num_workers < 0:
        raise UserError(f"Expected split_seed and num_workers of at least 0; got {rule.seed}, {num_workers}.")
    if augmentation not in ("none", "crop_flip"):
        raise UserError(f'Expected augmentation "none" or "crop_flip"; got {augmentation!r}.')


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
