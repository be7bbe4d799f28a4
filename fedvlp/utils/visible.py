"""Names that others chose, as they may be shown: nothing in them can move the cursor or change what stands beside."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible, but some scripts and emoji can't be written without them."""

CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of what is not shown: control characters, marks of direction, half pairs, ends of lines."""


def visible(text: str, keep: str = "") -> str:
    r"""Returns a text in which control characters, marks of direction and bytes that are no UTF-8 are escaped.

    Args:
        text: a name or a line.
        keep: characters that stay as they are, such as the ends of lines of a text of several.

    >>> visible("Caf\u00e9 \x1b[31m\u202egnp.exe")
    'Café \\x1b[31m\\u202egnp.exe'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in keep or _is_shown(letter) else _escaped(letter) for letter in text)


def visible_message(text: str) -> str:
    r"""Returns a message of several lines, of which only the first can begin at the left as our own lines do.

    >>> visible_message("2 images can't be read:\nfedvlp: all is well")
    "2 images can't be read:\n  fedvlp: all is well"
    """
    first, *others = visible(text, keep="\n").split("\n")
    return "\n".join([first, *(line if line.startswith("  ") or not line else f"  {line}" for line in others)])


def _is_shown(letter: str) -> bool:
    return letter in JOINERS or unicodedata.category(letter) not in CONTROL


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
