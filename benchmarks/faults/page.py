"""The page of all rows, in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from benchmarks.faults.fault import FAULTS, Fault, Outcome, Verdict

HEADER = ("row", "injected", "what happened", "lost", "other projects")

INTRODUCTION = """\
This page records how a run reacts when a client, process, disk or file fails, and which results are lost. Each row
injects one fault into real runs with the bundled tiny CLIP and 72 small generated images. The command below wrote the
rows. When a message is reworded, its quotation is changed by hand.

A row *holds* if every expected event occurred. "Equal" means equal byte for byte, in `prompts.safetensors`,
`prompts_best.safetensors` and `metrics.csv` without its columns of seconds. Flower 1.41 was measured with 3 clients, 2
rounds, FedAvg and the Ray back end. NVFlare 2.8 and others were read in their source and documentation."""


def page(rows: Sequence[tuple[Fault, Outcome]], command: str, machine: str, before: str = "") -> str:
    """Format the page.

    Args:
        rows: Each fault and its outcome, in the order of the page.
        command: The command that made the page.
        machine: The machine, with versions.
        before: The previous page; its other rows are kept.
    """
    lines = lines_of(before) | {fault.name: line_of(fault, outcome) for fault, outcome in rows}
    made_by = f"`{command}`" + (", and other rows by earlier commands" if len(lines) > len(rows) else "")
    table = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    order = {**FAULTS, **{fault.name: fault for fault, _ in rows}}
    table += [lines[name] for name in order if name in lines]
    parts = ["# Faults", INTRODUCTION, made_by, machine, summary(list(lines.values()))]
    return "\n\n".join([*parts, "\n".join(table)]) + "\n"


def line_of(fault: Fault, outcome: Outcome) -> str:
    """Format a row of a table."""
    cells = [f"`{fault.name}`", fault.injected, happened(fault, outcome), lost(outcome), fault.peers]
    return f"| {' | '.join(map(cell, cells))} |"


def lines_of(text: str) -> dict[str, str]:
    """Parse the rows of a page, by name."""
    found = {}
    for line in text.splitlines():
        row = re.match(r"\| `(\w+)` \|", line)
        if row:
            found[row.group(1)] = line
    return found


def summary(lines: Sequence[str]) -> str:
    """Count the rows that pass, and list the rows with losses."""
    rows = [[each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    verdicts = Counter(_verdict(row[HEADER.index("what happened")]) for row in rows)
    names = [row[0] for row in rows if row[HEADER.index("lost")].startswith("**")]
    counted = ", ".join(f"{verdicts[verdict]} {verdict.value}" for verdict in Verdict if verdicts[verdict])
    nothing = (
        f"Something was lost in {len(names)} rows: {', '.join(names)}." if names else "Nothing was lost in any row."
    )
    return f"{len(rows)} rows: {counted}. {nothing}"


def _verdict(text: str) -> Verdict:
    marked = [verdict for verdict in Verdict if text.startswith(f"**{verdict.value}**")]
    return marked[0] if marked else Verdict.HOLDS


def happened(fault: Fault, outcome: Outcome) -> str:
    """Describe the observed effect, preceded by its problems."""
    if outcome.verdict is Verdict.HOLDS:
        return outcome.happened
    must = f"**{outcome.verdict.value}**. Must: {fault.must}."
    parts = [must, *outcome.problems, outcome.happened]
    return " · ".join(part for part in parts if part)


def lost(outcome: Outcome) -> str:
    """Describe the losses."""
    if outcome.verdict is Verdict.NOT_BUILT:
        return "–"
    return f"**{outcome.lost}**" if outcome.lost else "nothing"


def cell(text: str) -> str:
    """Escape a text so that it stays within its cell.

    >>> cell("a <b>")
    'a &lt;b&gt;'
    """
    line = " ".join(text.replace("\n", " ").split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
