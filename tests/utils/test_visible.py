"""What is shown of names: no control character, no mark of direction, no line that looks like ours."""

from __future__ import annotations

import pytest

from fedvlp.utils.visible import visible, visible_message


@pytest.mark.parametrize("letter", ["\x00", "\x1b", "\x7f", "\x9b", "\n", "\r", "\u2028", "\u202e", "\u2066", "\ufeff"])
def test_what_can_forge_is_escaped(letter):
    shown = visible(f"cat{letter}dog")
    assert letter not in shown
    assert shown.startswith("cat\\")
    assert shown.isprintable()


def test_bytes_that_are_no_utf8_are_escaped():
    assert visible("a\udcff") == "a\\udcff"


@pytest.mark.parametrize("name", ["café", "猫", "नमस्ते", "می\u200cخواهم", "👩\u200d💻", "C:\\x1b"])
def test_letters_of_all_scripts_stay(name):
    assert visible(name) == name


def test_no_later_line_begins_at_the_left():
    shown = visible_message("2 images:\n  a.png\nfedvlp: all is well\n\nMend them.\r")
    assert shown == "2 images:\n  a.png\n  fedvlp: all is well\n\n  Mend them.\\r"
