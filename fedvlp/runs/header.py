"""The schema of the headers of checkpoints, prompts and clients' files, as data; a stranger may have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvlp.utils.errors import UserError
from fedvlp.utils.json_text import parse_json

MAX_NUMBER = 2**63 - 1
MAX_NAME = 255  # bytes, as most disks have it


class Field(NamedTuple):
    """What a value of a header must be.

    Attributes:
        expected: the same in words.
        accepts: whether a value is so; raises nothing, whatever JSON it is given.
    """

    expected: str
    accepts: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 0 that 63 bits hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def is_plain_name(value: Any) -> bool:
    """Whether a value is the name of a file, with no folder before it and nothing invisible in it."""
    return (
        isinstance(value, str)
        and 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME
        and not value.startswith(".")
        and not set(value) & set("/\\:")
        and value.isprintable()
    )


def _is_clients(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value)) and len(set(value)) == len(value)


def _is_files(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    are_clients = all(key.isascii() and key.isdecimal() and len(key) < 20 and str(int(key)) == key for key in value)
    return are_clients and all(map(is_plain_name, value.values()))


def _is_history(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parse_history(value)
    except ValueError:
        return False
    return True


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(cell, (int, float, str, type(None))) for cell in value.values())


def _is_class_path(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 1000 and all(part.isidentifier() for part in value.split("."))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_or_nothing(value: Any) -> bool:
    return value is None or isinstance(value, dict)


COUNT = Field("a whole number of at least 0", is_count)
CLIENTS = Field("a list of clients' ids, each a whole number of at least 0 and none of them twice", _is_clients)
FILES = Field("an object of plain file names, without folders, by client id", _is_files)
HISTORY = Field("lines of JSON objects, whose values are numbers, texts or null", _is_history)
TEXT = Field("a text", _is_text)
TEXTS = Field("a list of texts, none of them twice", _is_texts)
OBJECT = Field("an object", _is_object)

MODEL = {
    "class_path": Field("the path of a class", _is_class_path),
    "init_args": OBJECT,
    "clip_fingerprint": TEXT,
}
OPTIONS = {
    "class_names": TEXTS,
    "domains": TEXTS,
    "num_clients": COUNT,
    "rounds": COUNT,
    "clip": Field("an object of texts and numbers", _is_row),
}
"""Those options of methods that data, CLIP and federation decide; not every method has each of them."""
DESCRIPTION = {
    "model": OBJECT,
    "optimizer": Field("an object or null", _is_object_or_nothing),
    "protocol": TEXT,
    "split": TEXT,
    "training": OBJECT,
}
HEADERS: Mapping[str, Mapping[str, Field]] = {
    "checkpoint": {
        "round": COUNT,
        "clients": CLIENTS,
        "optimizers": CLIENTS,
        "history": HISTORY,
        "description": OBJECT,
        "files": FILES,
    },
    "prompts": {"clients": CLIENTS, "model": OBJECT, "files": FILES},
    "client": {},
}
"""The fields of each kind of file. What is not named here is let through: comparing two descriptions shows it."""


def check_header(path: Path, header: Mapping[str, Any], *kinds: str) -> str:
    """Returns which of these kinds a header is of.

    Raises:
        UserError: if it is of none of them, or a field is missing or not what it must be; names the field and what
            sort of value was found, and never the value.
    """
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{path} is no file of the kind {' or '.join(kinds)}. Pass one that a run wrote.")
    _check_fields(path, header, HEADERS[kind])
    if kind == "checkpoint":
        _check_fields(path, header["description"], DESCRIPTION, "description.")
        _check_model(path, header["description"]["model"], "description.model.")
    if kind == "prompts":
        _check_model(path, header["model"], "model.")
    _check_every_client_has_a_file(path, header)
    return kind


def parse_history(text: str) -> tuple[dict[str, Any], ...]:
    """Returns the rows of metrics that a header holds, one JSON object a line.

    Raises:
        ValueError: if a line is none, or has values that are neither numbers nor texts nor null.
    """
    rows = tuple(parse_json(line) for line in text.split("\n") if line)
    for row in rows:
        if not isinstance(row, dict) or not all(
            isinstance(value, (int, float, str, type(None))) for value in row.values()
        ):
            raise ValueError("a line is no object of numbers and texts")
    return rows


def kind_of(value: Any) -> str:
    """Returns what sort of JSON a value is, and nothing of its content.

    >>> kind_of([1, 2]), kind_of(-3), kind_of("secret")
    ('a list', 'a negative whole number', 'a text')
    """
    if isinstance(value, (bool, type(None))):
        return "null" if value is None else "true or false"
    if isinstance(value, int):
        return "a negative whole number" if value < 0 else "a whole number"
    names = {float: "a number with decimals", str: "a text", list: "a list", dict: "an object"}
    return names[type(value)]


def _check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Field], prefix: str = "") -> None:
    for name, field in fields.items():
        if name not in values:
            raise UserError(f"{path} lacks {prefix}{name} in its header, which should be {field.expected}.")
        if not field.accepts(values[name]):
            found = kind_of(values[name])
            raise UserError(
                f"{path} should have {field.expected} as {prefix}{name} in its header, but has {found} that is not so. "
                "Pass a file that a run wrote."
            )


def _check_model(path: Path, model: Mapping[str, Any], prefix: str) -> None:
    _check_fields(path, model, MODEL, prefix)
    options = model["init_args"]
    given = {name: field for name, field in OPTIONS.items() if options.get(name) is not None}
    _check_fields(path, options, given, f"{prefix}init_args.")


def _check_every_client_has_a_file(path: Path, header: Mapping[str, Any]) -> None:
    """Sees that, where there are files at all, every client named has one."""
    files = header.get("files")
    named = [*header.get("clients", ()), *header.get("optimizers", ())]
    if files and any(str(client) not in files for client in named):
        raise UserError(f"{path} should have a file name for each of its clients as files in its header.")
