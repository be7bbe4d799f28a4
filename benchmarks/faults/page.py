"""The page of all rows, in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.faults.fault import FAULTS, Fault, Outcome, Verdict

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


def page(rows: Sequence[tuple[Fault, Outcome]], command: str, machine: str, before: str = "") -> str:
    """Returns the page.

    Args:
        rows: each fault and what came of it, in the order of the page.
        command: that made it.
        machine: where, with versions.
        before: the page as it was, whose other rows stay.
    """
    lines = lines_of(before) | {fault.name: line_of(fault, outcome) for fault, outcome in rows}
    made_by = f"`{command}`" + (", and other rows by earlier commands" if len(lines) > len(rows) else "")
    parts = ["# What happens when things go wrong", INTRODUCTION, made_by, machine, summary(list(lines.values()))]
    for table, title in TABLES.items():
        known = sorted((row for row in FAULTS.values() if row.table == table), key=lambda row: row.number)
        own = {fault.name: fault for fault in known} | {fault.name: fault for fault, _ in rows if fault.table == table}
        chosen = [lines[name] for name in own if name in lines]
        if chosen:
            head = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
            parts += [f"## {title}", "\n".join([*head, *chosen])]
    return "\n\n".join(parts) + "\n"


def line_of(fault: Fault, outcome: Outcome) -> str:
    """Returns a row of a table."""
    cells = [str(fault.number), f"`{fault.name}`", fault.injected, happened(fault, outcome)]
    cells += [outcome.codes_in_words(), lost(outcome), fault.peers]
    return f"| {' | '.join(map(cell, cells))} |"


def lines_of(text: str) -> dict[str, str]:
    """Returns the rows of a page by name."""
    found = {}
    for line in text.splitlines():
        row = re.match(r"\| \d+ \| `(\w+)` \|", line)
        if row:
            found[row.group(1)] = line
    return found


def summary(lines: Sequence[str]) -> str:
    """Returns how many rows hold, and in which something was lost."""
    rows = [[each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    verdicts = Counter(_verdict(row[HEADER.index("what happened")]) for row in rows)
    names = [row[1] for row in rows if row[HEADER.index("lost")].startswith("**")]
    counted = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict])
    nothing = (
        f"Something was lost in {len(names)} rows: {', '.join(names)}." if names else "Nothing was lost in any row."
    )
    return f"{len(rows)} rows: {counted}. {nothing}"


def _verdict(text: str) -> Verdict:
    marked = [verdict for verdict in Verdict if text.startswith(f"**{verdict.value}**")]
    return marked[0] if marked else Verdict.HOLDS


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
    line = " ".join(text.replace("\n", " ").split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
