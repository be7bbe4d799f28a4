"""What a fault is, what came of it, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
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
        codes: the exit codes of all commands, in their order.
        lost: what was lost; empty for nothing.
        problems: what was otherwise than it must be.
        seconds: how long the row took.
    """

    verdict: Verdict
    happened: str = ""
    codes: Sequence[int] = ()
    lost: str = ""
    problems: Sequence[str] = ()
    seconds: float = 0.0

    def codes_in_words(self) -> str:
        """Returns the exit codes, equal ones that follow each other as one.

        >>> Outcome(Verdict.HOLDS, codes=(0, -9, -9, 1)).codes_in_words()
        '0, 2 × -9, 1'
        """
        runs = [(code, len(list(same))) for code, same in groupby(self.codes)]
        return ", ".join(f"{count} × {code}" if count > 1 else str(code) for code, count in runs)


@dataclass(frozen=True)
class Fault:
    """One row of the page.

    Attributes:
        table: which table it stands in, a key of ``page.TABLES``.
        number: its place there, from 1.
        name: by which ``--only`` asks for it.
        injected: what is done.
        must: what must happen.
        peers: what other projects do there, with their versions.
        inject: does it, and notes on its bench what happened; None if what must happen is not built.
    """

    table: str
    number: int
    name: str
    injected: str
    must: str
    peers: str
    inject: Inject | None


FAULTS: dict[str, Fault] = {}
"""All rows by name, once ``benchmarks.faults.registry`` was imported."""


def fault(table: str, number: int, *, injected: str, must: str, peers: str) -> Callable[[Inject], Inject]:
    """Registers a function as the row of its own name."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__
        add(Fault(table, number, name, injected, must, peers, inject))
        return inject

    return register


def add(row: Fault) -> None:
    """Registers a row.

    Raises:
        ValueError: if there is one of its name or in its place.
    """
    taken = [each.name for each in FAULTS.values() if (each.table, each.number) == (row.table, row.number)]
    if row.name in FAULTS or taken:
        raise ValueError(f"There is a row in the place or of the name of {row.name!r} already: {taken}.")
    FAULTS[row.name] = row
