"""The page of all rows, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.faults.fault import Fault, Outcome, Verdict
from fedvlp.utils.visible import visible

FOUND = "found"
CLIENTS = "clients"
PROMISES = "promises"
FURTHER = "further"

TABLES: Mapping[str, str] = {
    FOUND: "Faults that were once found here",
    CLIENTS: "Faults that were put into Flower",
    PROMISES: "What a federation should promise",
    FURTHER: "Further faults",
}
"""Titles of the tables, in their order."""

HEADER = ("#", "row", "injected", "what happened", "exit codes", "lost", "other projects")

INTRODUCTION = """\
Each row puts a fault into real runs and looks at what comes of it: `fedvlp fit` and other commands, each in a process
of its own, with the bundled tiny CLIP and 72 small made-up images. All but the columns "injected" and "other
projects" is written by the command below. The exit code -9 is that of a process that the row itself killed, 130 of
one that it interrupted, 143 of one that it asked to end.

A row *holds* if all happened that must. What is lost stands there even where losing it cannot be helped: a client
that fails in a round has no update in that round. "Equal" always means byte for byte, in `prompts.safetensors`,
`prompts_best.safetensors` and `metrics.csv` without its columns of seconds.

What is said of Flower 1.41 was measured with 3 clients, 2 rounds, FedAvg and the Ray back end; what is said of
NVFlare 2.8 and others was read in their source and documentation. `–` means that it was not looked at."""


def page(rows: Sequence[tuple[Fault, Outcome]], command: str, machine: str) -> str:
    """Returns the page.

    Args:
        rows: each fault and what came of it, in the order of the page.
        command: that made it.
        machine: where, with versions.
    """
    parts = ["# What happens when things go wrong", INTRODUCTION, f"`{command}`", machine, summary(rows)]
    for table, title in TABLES.items():
        own = [(fault, outcome) for fault, outcome in rows if fault.table == table]
        if own:
            parts += [f"## {title}", _table(own)]
    return "\n\n".join(parts) + "\n"


def summary(rows: Sequence[tuple[Fault, Outcome]]) -> str:
    """Returns how many rows hold, and in which something was lost."""
    verdicts = Counter(outcome.verdict for _, outcome in rows)
    lost = [fault.name for fault, outcome in rows if outcome.lost]
    counted = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict])
    names = ", ".join(f"`{name}`" for name in lost)
    nothing = "Nothing was lost in any row." if not lost else f"Something was lost in {len(lost)} rows: {names}."
    return f"{len(rows)} rows: {counted}. {nothing}"


def _table(rows: Sequence[tuple[Fault, Outcome]]) -> str:
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for fault, outcome in rows:
        cells = [str(fault.number), f"`{fault.name}`", fault.injected, happened(fault, outcome)]
        cells += [outcome.codes_in_words(), lost(outcome), fault.peers]
        lines.append(f"| {' | '.join(map(cell, cells))} |")
    return "\n".join(lines)


def happened(fault: Fault, outcome: Outcome) -> str:
    """Returns what was seen, and before it what is wrong with it."""
    if outcome.verdict is Verdict.HOLDS:
        return outcome.happened
    must = f"**{outcome.verdict.value}**. Must: {fault.must}."
    parts = [must, *outcome.problems, outcome.happened]
    return " · ".join(part for part in parts if part)


def lost(outcome: Outcome) -> str:
    """Returns what was lost."""
    if outcome.verdict is Verdict.NOT_BUILT:
        return "–"
    return f"**{outcome.lost}**" if outcome.lost else "nothing"


def cell(text: str) -> str:
    """Returns a text that stays within its cell, whatever a run said.

    >>> cell("a <b>")
    'a &lt;b&gt;'
    """
    line = " ".join(visible(text.replace("\n", " ")).split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
