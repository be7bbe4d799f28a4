"""What jsonargparse says of a wrong value, in one line: which option, what was expected, what was found.

It says so only in words, over many lines, of its own types, once for each type that an option may have. So the words
are what is looked at. Where a new version words them differently, its own lines still come out, in one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NOISE = (
    "Does not validate",
    "Subtypes:",
    "Subclass types expect one of",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Expected an instantiatable class",
    "Expected a path but",
    "Given value",
    "Problem with given class_path",
    "Unable to load config '",
    "a class path (str)",
    "a dict with",
)
"""How lines begin in which it speaks of its own types, or says what it says again elsewhere."""

KEY = re.compile(r'Parser key "([^"]*)":?')
TYPE = re.compile(r"(?:Expected an? (.+?)|Not a valid subclass of (\w+))(?:\. Got value: (.*))?$", re.DOTALL)
GIVEN = re.compile(r"Given value: (.*)$")
WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "list": "a list"}
LONGEST = 300


class Line(NamedTuple):
    """A line of a message: how deep it stands, and what it says."""

    indent: int
    text: str


def condense(message: str) -> str:
    r"""Returns a message of the parser's in one line.

    >>> condense('Parser key "rounds":\n  Errors:\n    - Expected a <class \'int\'>. Got value: x')
    'rounds: expected a whole number, got x'
    """
    lines = _lines(message)
    told = [line for line in lines if not line.text.startswith(NOISE)]
    if not told:
        return _cut(" ".join(message.split()))
    best = _most_telling(told)
    key = _key(lines, lines.index(best[0]))
    words = " or ".join(dict.fromkeys(_in_words(line.text) for line in best))
    if all(_expects(line) for line in best):
        words = f"expected {words}{_found(lines, best)}"
    return _cut(f"{key}: {words}" if key else words)


def _lines(message: str) -> list[Line]:
    """Returns the lines; a key that stands before its message gets one of its own."""
    lines: list[Line] = []
    for raw in message.splitlines():
        text = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        while text.startswith("- "):
            text = text[2:]
            indent += 2
        found = KEY.match(text)
        if found:
            lines.append(Line(indent, found.group()))
            text = text[found.end() :].strip()
            indent += 1
        if text:
            lines.append(Line(indent, text))
    return lines


def _most_telling(told: list[Line]) -> list[Line]:
    """Returns the lines that say most: of a value inside the option, else what no type says, else of all types."""
    plain = [line for line in told if not KEY.fullmatch(line.text)] or told
    with_value = [line for line in plain if "Got value:" in line.text]
    if with_value:
        deepest = max(line.indent for line in with_value)
        return [line for line in with_value if line.indent == deepest]
    others = [line for line in plain if not TYPE.match(line.text)]
    if others:
        return others
    deepest = max(line.indent for line in plain)
    return [line for line in plain if line.indent == deepest]


def _key(lines: list[Line], place: int) -> str:
    """Returns the whole name of the option that a line is about, from the keys that it stands below."""
    parts: list[str] = []
    indent = lines[place].indent
    for line in reversed(lines[: place + 1]):
        found = KEY.fullmatch(line.text)
        if found and line.indent < max(indent, 1):
            if parts[:1] != [found.group(1)]:
                parts.insert(0, found.group(1))
            indent = line.indent
    return ".".join(parts)


def _expects(line: Line) -> bool:
    return TYPE.match(line.text) is not None and "dot import path" not in line.text


def _found(lines: list[Line], best: list[Line]) -> str:
    """Returns what was found instead."""
    own = TYPE.match(best[0].text)
    if own is not None and own.group(3) is not None:
        return f", got {_cut(own.group(3), 80)}"
    last = lines.index(best[-1])
    given = next((found for line in lines[last:] if (found := GIVEN.match(line.text))), None)
    return "" if given is None else f", got {_cut(given.group(1), 80)}"


def _in_words(text: str) -> str:
    """Returns a line's expectation in words; a line of another kind as it is."""
    found = TYPE.match(text)
    if found is None:
        return text
    kind = (found.group(1) or found.group(2)).removeprefix("<class '").removesuffix("'>")
    if kind.startswith("dot import path string"):
        return f"there is no class {kind.partition(': ')[2]}"
    if kind.startswith("typing.Literal["):
        return f"one of {kind[len('typing.Literal[') : -1]}".replace("'", "")
    name = kind.partition("[")[0].rpartition(".")[2]
    return WORDS.get(name, f"a {name}")


def _cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
