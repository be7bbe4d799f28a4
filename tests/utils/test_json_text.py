"""JSON of strangers ends in a value or one error, which holds nothing of it."""

import pytest

from fedvlp.utils.json_text import parse_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "[" * 33 + "]" * 33])
def test_depth_is_bounded(text):
    with pytest.raises(ValueError, match=r"nested more than 32 deep|not valid"):
        parse_json(text)


def test_depth_that_is_allowed():
    assert parse_json("[" * 32 + "]" * 32)


@pytest.mark.parametrize("text", ["", "secret", '{"secret": }', "1" * 10_000])
def test_what_is_no_json_is_not_shown(text):
    with pytest.raises(ValueError, match="not valid JSON") as caught:
        parse_json(text)
    assert "secret" not in str(caught.value)
