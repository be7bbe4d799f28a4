"""What each value of a header must be: the nearest that is right, and the nearest that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlp.runs.header import (
    CLIENTS,
    COUNT,
    FILES,
    HISTORY,
    MODEL,
    OBJECT,
    OPTIONS,
    TEXT,
    TEXTS,
    check_header,
    is_count,
    is_plain_name,
    kind_of,
    parse_history,
)
from fedvlp.utils.errors import UserError

CLASS_PATH = MODEL["class_path"]
RIGHT = [
    (COUNT, [0, 1, 2**63 - 1]),
    (CLIENTS, [[], [3, 0, 2], [2**63 - 1]]),
    (FILES, [{}, {"0": "a"}, {"17": "b.c", "9" * 18: "d"}]),
    (HISTORY, ["", '{"round": 2, "loss": 0.5, "note": "x", "gone": null}\n{}']),
    (TEXT, ["", "a\nb"]),
    (TEXTS, [[], ["b", "a"], [""]]),
    (OBJECT, [{}, {"a": [1]}]),
    (OPTIONS["clip"], [{}, {"name": "x", "seed": 3, "share": 0.5, "pretrained": None}]),
    (CLASS_PATH, ["a", "fedvlp.methods.trip.TRIP", "a" * 999]),
]
WRONG = [
    (COUNT, [-1, 2**63, True, False, 1.0, "1", None, [1], {}]),
    (CLIENTS, [[1, 1], [-1], [True], ["1"], (1,), {"1": 1}, None, 3, "12"]),
    (FILES, [[], {"01": "a"}, {"-1": "a"}, {"": "a"}, {"a": "a"}, {"٣": "a"}, {"9" * 20: "a"}, {"1": "/"}, {"1": 2}]),
    (HISTORY, ["[]", "3", "{", '{"a": [1]}', '{"a": {}}', "{}\nx", None, 3, ["{}"]]),
    (TEXT, [None, 3, ["a"], {}]),
    (TEXTS, [["a", "a"], ["a", 3], "ab", None, {"a": 1}]),
    (OBJECT, [None, [], "a", 3]),
    (OPTIONS["clip"], [None, [], "a", {"name": ["x"]}, {"name": {}}]),
    (CLASS_PATH, ["", "a.", ".a", "a b", "a-b", "a" * 1000, 3, None, ["a"]]),
]


def cases(table):
    found = []
    for field, values in table:
        found += [pytest.param(field, value, id=f"{field.expected[:25]}-{value!r:.30}") for value in values]
    return found


@pytest.mark.parametrize(("field", "value"), cases(RIGHT))
def test_what_is_right_is_accepted(field, value):
    assert field.accepts(value)


@pytest.mark.parametrize(("field", "value"), cases(WRONG))
def test_what_is_wrong_is_not(field, value):
    assert not field.accepts(value)


def test_plain_names():
    assert all(map(is_plain_name, ["a", "a.b", "client 3.safetensors", "a" * 255, "é" * 127]))
    wrong = ["", ".", ".a", "..", "a/b", "a\\b", "a:b", "a\nb", "a\u202eb", "a" * 256, "é" * 128, 3, None, ["a"]]
    assert not any(map(is_plain_name, wrong))
    assert not is_count("0")


def test_a_history_has_a_row_a_line():
    assert parse_history('{"round": 2}\n\n{"round": 1, "loss": null}\n') == ({"round": 2}, {"round": 1, "loss": None})
    with pytest.raises(ValueError, match="numbers and texts"):
        parse_history('{"round": [2]}')


def test_kinds_are_named_without_their_content():
    assert kind_of(None) == "null"
    assert kind_of(True) == kind_of(False) == "true or false"
    assert kind_of(0) == kind_of(7) == "a whole number"
    assert kind_of(-1) == "a negative whole number"
    assert kind_of(-0.5) == "a number with decimals"
    assert kind_of("secret") == "a text"
    assert [kind_of([3]), kind_of({"a": 1})] == ["a list", "an object"]


DESCRIBED_MODEL = {"class_path": "a.B", "init_args": {"rounds": 3}, "clip_fingerprint": "00ff"}
PROMPTS = {"kind": "prompts", "clients": [4, 1], "model": DESCRIBED_MODEL, "files": {"1": "x", "4": "y"}}
DESCRIPTION = {"model": DESCRIBED_MODEL, "optimizer": None, "protocol": "p", "split": "s", "training": {}}
CHECKPOINT = {
    "kind": "checkpoint",
    "round": 2,
    "clients": [4, 1],
    "optimizers": [2],
    "history": "{}",
    "description": DESCRIPTION,
    "files": {"1": "x", "4": "y", "2": "z"},
}


def check(header, *kinds):
    return check_header(Path("file"), header, *kinds)


def test_whole_headers_are_accepted():
    assert check(PROMPTS, "prompts", "checkpoint") == "prompts"
    assert check(CHECKPOINT, "prompts", "checkpoint") == "checkpoint"
    assert check(CHECKPOINT | {"files": {}}, "checkpoint") == "checkpoint"
    assert check({"kind": "client"}, "client") == "client"
    assert check(PROMPTS | {"what was added later": 3}, "prompts") == "prompts"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (PROMPTS | {"kind": "client"}, "kind prompts or checkpoint"),
        (PROMPTS | {"kind": ["prompts"]}, "kind prompts or checkpoint"),
        (PROMPTS | {"files": {"1": "x"}}, "a file name for each of its clients"),
        (CHECKPOINT | {"files": {"1": "x", "4": "y"}}, "a file name for each of its clients"),
        (PROMPTS | {"model": {**DESCRIBED_MODEL, "clip_fingerprint": 3}}, r"as model\.clip_fingerprint"),
        (PROMPTS | {"model": {**DESCRIBED_MODEL, "init_args": {"rounds": -3}}}, r"as model\.init_args\.rounds"),
        (CHECKPOINT | {"description": {**DESCRIPTION, "split": 3}}, r"as description\.split"),
        (CHECKPOINT | {"description": {**DESCRIPTION, "optimizer": 3}}, r"as description\.optimizer"),
        (
            CHECKPOINT | {"description": {**DESCRIPTION, "model": {**DESCRIBED_MODEL, "class_path": ""}}},
            r"as description\.model\.class_path",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_place(header, message):
    with pytest.raises(UserError, match=message):
        check(header, "prompts", "checkpoint")


@pytest.mark.parametrize("header", [PROMPTS, CHECKPOINT, DESCRIPTION, DESCRIBED_MODEL])
def test_a_field_that_is_missing_is_named(header):
    for name in header:
        less = {other: value for other, value in header.items() if other != name}
        if header is DESCRIPTION:
            less = CHECKPOINT | {"description": less}
        if header is DESCRIBED_MODEL:
            less = PROMPTS | {"model": less}
        with pytest.raises(UserError, match=rf"lacks .*\b{name} in|no file of the kind"):
            check(less, "prompts", "checkpoint")
