"""How often each row tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Numbers of trials.

    Attributes:
        kills: of each system's runs, at random moments.
        bit_flips: of the newest checkpoint.
        mutated_files: prompts and checkpoints, tables and summaries.
        mutated_images: image files.
        wrong_values: pairs of option and value of each kind of command; None for all.
    """

    kills: int = 2
    bit_flips: int = 4
    mutated_files: int = 60
    mutated_images: int = 100
    wrong_values: int | None = 60


QUICK = Effort()
FULL = Effort(kills=20, bit_flips=25, mutated_files=1000, mutated_images=1000, wrong_values=None)
