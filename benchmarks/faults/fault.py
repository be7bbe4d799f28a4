"""Definition of faults, their outcomes, and the decorator that registers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.faults.bench import Bench

Inject = Callable[["Bench"], None]


class Verdict(Enum):
    """Whether the effect is as required."""

    HOLDS = "holds"
    FAILS = "FAILS"
    NOT_BUILT = "not built yet"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a fault.

    Attributes:
        verdict: Whether the effect is as required.
        happened: Observed effect.
        lost: Losses; empty if there are none.
        problems: Deviations from the required effect.
        seconds: Duration of the row.
    """

    verdict: Verdict
    happened: str = ""
    lost: str = ""
    problems: Sequence[str] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One row of the page.

    Attributes:
        name: Name for ``--only``.
        injected: Description of the fault.
        must: Required effect.
        peers: Behaviour of other projects, with their versions.
        inject: Function that injects the fault and notes the effect on its bench; None if not implemented.
    """

    name: str
    injected: str
    must: str
    peers: str
    inject: Inject | None


FAULTS: dict[str, Fault] = {}
"""All rows by name, after loading ``benchmarks.faults.rows``."""


def fault(*, injected: str, must: str, peers: str) -> Callable[[Inject], Inject]:
    """Register a function as a row under its name."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__
        FAULTS[name] = Fault(name, injected, must, peers, inject)
        return inject

    return register
