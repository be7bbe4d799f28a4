"""Types and tensor shapes are checked only during tests."""

import random
import sys
from importlib import import_module
from types import FunctionType

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.clip import cosine_logits
from fedvlp.core.state import Client, weighted_mean
from tests.helpers.forks import exit_code, forget_package, fork
from tests.helpers.shapes import CHECKED_CALLS, begin_test, checked, unchecked

IMAGES = torch.ones(2, 3)
TEXTS = torch.ones(4, 5)  # should be as wide as the images' features


def test_the_first_calls_of_a_test_are_checked():
    for _ in range(CHECKED_CALLS):
        with pytest.raises(jaxtyping.TypeCheckError, match="text_features"):
            cosine_logits(IMAGES, TEXTS, 1.0)
    with pytest.raises(RuntimeError, match="multiplied"):
        cosine_logits(IMAGES, TEXTS, 1.0)
    begin_test()
    with pytest.raises(jaxtyping.TypeCheckError, match="text_features"):
        cosine_logits(IMAGES, TEXTS, 1.0)


def test_a_result_must_match_the_axes_of_the_arguments():
    @checked
    def part(values: Float[Tensor, "B"], first: int) -> Float[Tensor, "B"]:
        return values[first:]

    assert len(part(torch.ones(3), 0)) == 3
    with pytest.raises(jaxtyping.TypeCheckError, match="return"):
        part(torch.ones(3), 1)


def test_axes_are_independent_between_calls():
    @checked
    def shorter(values: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return values if len(values) == 1 else torch.cat([shorter(values[1:]), values[:1]])

    assert len(shorter(torch.ones(3))) == 3


def test_dataclass_fields_and_later_names_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError, match="id"):
        Client("not a number", 0, 0)

    @checked
    def first(later: Later) -> None:
        """Accept an object of a class defined below."""

    first(Later())
    with pytest.raises(jaxtyping.TypeCheckError, match="later"):
        first(1)


class Later:
    """Defined after the function that refers to it."""


def test_unchecked_disables_checks_only_within_its_block():
    with unchecked(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        cosine_logits(IMAGES, TEXTS, 1.0)
    with pytest.raises(ZeroDivisionError), unchecked():
        raise ZeroDivisionError
    with pytest.raises(jaxtyping.TypeCheckError):
        cosine_logits(IMAGES, TEXTS, 1.0)


def test_checks_do_not_use_the_global_generator():
    before = random.getstate()
    weighted_mean([{"prompt": torch.ones(1)}, {"prompt": torch.ones(1)}], [1, 2])
    assert random.getstate() == before


def test_nothing_is_checked_or_wrapped_in_production(tmp_path):
    child = fork(use_unchecked, output=tmp_path / "output.txt")
    assert exit_code(child) == 0, (tmp_path / "output.txt").read_text()


def use_unchecked() -> None:
    """Import modules again without the hook, and call them with wrong types."""
    forget_package("jaxtyping", "beartype")
    predictions, state = (import_module(f"fedvlp.core.{name}") for name in ("predictions", "state"))
    assert "jaxtyping" in sys.modules
    assert "beartype" not in sys.modules
    for function in (
        predictions.resample,
        predictions.Predictions.__init__,
        state.weighted_mean,
        state.Client.__init__,
    ):
        assert type(function) is FunctionType
        assert not hasattr(function, "__wrapped__")
    assert state.Client("not a number", None, 0).id == "not a number"
