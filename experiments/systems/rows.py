"""The methods that are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from experiments.runs import adamw

CHOSEN = Path(__file__).with_name("rates.json")
ALL_CLIENTS = "--trainer.cohort_size=null"


@dataclass(frozen=True)
class Row:
    """A method with an optimizer.

    Attributes:
        title: what the table calls the method.
        config: the method's config.
        overrides: arguments that all of its runs have.
        rate: learning rate of AdamW; none for the config's own optimizer, which is the paper's.
    """

    title: str
    config: str
    overrides: tuple[str, ...] = ()
    rate: float | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The overrides, and those of the optimizer."""
        return (*self.overrides, *adamw(self.rate))

    @property
    def optimizer(self) -> str:
        """What the table calls the optimizer."""
        if self.config.startswith("zero_shot"):
            return "none"
        return "paper's" if self.rate is None else f"AdamW {self.rate:g}"


METHODS = (
    Row("zero-shot CLIP", "zero_shot"),
    Row("PromptFL", "promptfl"),
    Row("PromptFL + KL", "promptfl_kl"),
    Row("TRIP-Lite", "trip_lite"),
    Row("TRIP", "trip"),
    Row("TRIP, random pi", "trip_random"),
    Row("DiPrompT", "diprompt", (ALL_CLIENTS,)),
    Row("Fed-DPT", "fed_dpt"),
    Row("ADAPT", "adapt"),
    Row("PLAN", "plan"),
)


def all_rows() -> list[Row]:
    """Returns every method with its paper's optimizer, and below it with AdamW where a rate was chosen."""
    rates: dict[str, float] = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    rows = []
    for row in METHODS:
        rows.append(row)
        if row.config in rates:
            rows.append(Row(row.title, row.config, row.overrides, rates[row.config]))
    return rows
