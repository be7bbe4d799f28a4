"""What a fault is, its outcome, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.faults.bench import Bench

Inject = Callable[["Bench"], None]


class Verdict(Enum):
    """Whether what happened is what must happen."""

    HOLDS = "holds"
    FAILS = "FAILS"
    NOT_BUILT = "not built yet"


@dataclass(frozen=True)
class Outcome:
    """What came of a fault.

    Attributes:
        verdict: whether it is what must come of it.
        happened: what was seen.
        lost: what was lost; empty for nothing.
        problems: what was otherwise than it must be.
        seconds: how long the row took.
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
        name: by which ``--only`` asks for it.
        injected: what is done.
        must: what must happen.
        peers: what other projects do there, with their versions.
        inject: does it, and notes on its bench what happened; None if what must happen is not built.
    """

    name: str
    injected: str
    must: str
    peers: str
    inject: Inject | None


FAULTS: dict[str, Fault] = {}
"""All rows by name, once ``benchmarks.faults.rows`` was loaded."""


def fault(*, injected: str, must: str, peers: str) -> Callable[[Inject], Inject]:
    """Registers a function as the row of its own name."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__
        FAULTS[name] = Fault(name, injected, must, peers, inject)
        return inject

    return register
