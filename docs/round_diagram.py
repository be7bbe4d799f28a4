"""One communication round as a Mermaid sequence diagram, whose steps are the hooks of ``FederationCallback``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from docs.source_tree import Module, Package

PARTICIPANTS = {"F": "Federation", "S": "Strategy (server)", "M": "Module (one client at a time)", "D": "Data"}
BEFORE = {
    "on_round_start": ["F->>F: draw the cohort from (seed, round)"],
    "on_client_start": [
        "S->>M: broadcast(server, client), what the client downloads",
        "F->>M: what the client kept from its last round",
        "D->>M: its batches, shuffled by a seed of (seed, round, phase, client)",
    ],
    "on_client_step": ["M->>M: training_step, backward, optimizer step"],
    "on_client_end": ["M->>F: ClientUpdate, the tensors that the phase uploads"],
    "on_phase_end": ["F->>S: aggregate(server, updates)", "S->>F: the next ServerState"],
    "on_round_metrics": ["D->>M: evaluation splits, with what is deployed", "M->>F: accuracy of every split"],
}
"""What happens before a hook is called."""


@dataclass(frozen=True)
class Step:
    """One line of the list of hooks.

    Attributes:
        depth: how far it is indented.
        names: the hooks; none for a loop.
        text: what is said of the hooks, or of what a loop goes through.
    """

    depth: int
    names: tuple[str, ...]
    text: str


def round_diagram(package: Package) -> str:
    """Returns the diagram.

    Raises:
        ValueError: if something is said to happen before a hook that there is not.
    """
    steps = list(hook_steps(package.modules[f"{package.name}.training.callback"]))
    known: list[str] = []
    for step in steps:
        known += step.names
    if unknown := sorted(BEFORE.keys() - set(known)):
        raise ValueError(f"BEFORE in docs/round_diagram.py names {unknown}; the hooks are {known}.")
    lines = ["```mermaid", "sequenceDiagram"]
    lines += [f"    participant {key} as {name}" for key, name in PARTICIPANTS.items()]
    return "\n".join([*lines, *_body(steps), "```"])


def hook_steps(module: Module) -> Iterator[Step]:
    """Yields the lines of the literal block in the docstring of ``FederationCallback``."""
    (kind,) = [
        node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name == "FederationCallback"
    ]
    block = (ast.get_docstring(kind) or "").partition("::\n")[2]
    for line in filter(str.strip, block.splitlines()):
        depth = len(line) - len(line.lstrip())
        if line.strip().startswith("for each"):
            yield Step(depth, (), line.strip().rstrip(":"))
        else:
            columns = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            yield Step(depth, tuple(columns[0].split(", ")), "".join(columns[1:]))


def _body(steps: list[Step]) -> Iterator[str]:
    """Yields the lines of loops and hooks."""
    loops: list[tuple[int, str]] = []
    for step in steps:
        # A line such as "for each phase, for each client" is two loops; "after each phase" is still in the first.
        while loops and loops[-1][0] >= step.depth and not step.text.startswith(f"after {loops[-1][1]}"):
            loops.pop()
            yield _indented(loops, "end")
        if step.names:
            yield from (_indented(loops, line) for line in _hook(step))
        for each in re.findall(r"for (each [^,]+)", "" if step.names else step.text):
            yield _indented(loops, f"loop {each}")
            loops.append((step.depth, each))
    while loops:
        loops.pop()
        yield _indented(loops, "end")


def _hook(step: Step) -> Iterator[str]:
    """Yields what happens before hooks, and a note for them."""
    for name in step.names:
        yield from BEFORE.get(name, ())
    said = step.text.replace("``", "").replace(";", ",")  # a semicolon would end a line of Mermaid
    yield f"Note over F: {', '.join(step.names)}{f' ({said})' if said else ''}"


def _indented(loops: list[tuple[int, str]], line: str) -> str:
    """A line at its place inside the loops."""
    return "    " * (1 + len(loops)) + line
