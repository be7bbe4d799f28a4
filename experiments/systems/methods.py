"""The methods that are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.runs import adamw

CHOSEN = Path(__file__).with_name("rates.json")
ALL_CLIENTS = "--trainer.cohort_size=null"


@dataclass(frozen=True)
class TunedMethod:
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
    TunedMethod("zero-shot CLIP", "zero_shot"),
    TunedMethod("PromptFL", "promptfl"),
    TunedMethod("PromptFL + KL", "promptfl_kl"),
    TunedMethod("TRIP-Lite", "trip_lite"),
    TunedMethod("TRIP", "trip"),
    TunedMethod("TRIP, random pi", "trip_random"),
    TunedMethod("DiPrompT", "diprompt", (ALL_CLIENTS,)),
    TunedMethod("Fed-DPT", "fed_dpt"),
    TunedMethod("ADAPT", "adapt"),
    TunedMethod("PLAN", "plan"),
)


def all_methods() -> list[TunedMethod]:
    """Returns every method with its paper's optimizer, and below it with AdamW where a rate was chosen."""
    rates: dict[str, float] = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    methods = []
    for method in METHODS:
        methods.append(method)
        if method.config in rates:
            methods.append(replace(method, rate=rates[method.config]))
    return methods
