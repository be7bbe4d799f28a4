"""Configs that would take all memory or time."""

import time

import pytest

from fedvlp.utils.errors import UserError
from fedvlp.utils.yaml_limits import DEEPEST, check_yaml, read_yaml


def bomb(levels, width=9):
    """Lists of aliases of lists: `width ** levels` values."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


def test_an_alias_bomb_is_refused_at_once(tmp_path):
    path = tmp_path / "bomb.yaml"
    path.write_text(bomb(40))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"bomb\.yaml stands for more than 100,000 values"):
        read_yaml(path)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["[" * 3000, "[" * 60 + "]" * 60, "{a: " * 60 + "1" + "}" * 60])
def test_deep_values_are_refused(text):
    with pytest.raises(UserError, match="x is nested more than"):
        check_yaml(text, "x")


def test_what_people_write_is_well(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(bomb(3) + "\nb: [1, {c: 2}]\n" + "d: " + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    content = read_yaml(path)
    assert content["a2"] == [[["x"]] * 9] * 9
    assert content["b"] == [1, {"c": 2}]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", b"\x00", b"a: b: c"])
def test_what_is_no_yaml_is_one_line(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match="can't be read") as error:
        read_yaml(path)
    assert "\n" not in str(error.value)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "config.yaml"
    with path.open("wb") as file:
        file.truncate(20_000_000)
    with pytest.raises(UserError, match="10,000,000 bytes"):
        read_yaml(path)
