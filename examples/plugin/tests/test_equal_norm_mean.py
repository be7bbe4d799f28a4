import pytest
import torch

from fedvlp.testing import check_aggregator
from my_prompts.equal_norm_mean import EqualNormMean

BEFORE = {"prompt": torch.tensor([1.0, 1.0])}


def combined(*sent: tuple[float, float]) -> list[float]:
    states = [{"prompt": torch.tensor(place)} for place in sent]
    return EqualNormMean().combine(states, [1] * len(states), BEFORE)["prompt"].tolist()


def test_it_keeps_to_the_contract():
    check_aggregator(EqualNormMean())


def test_updates_get_the_median_length():
    # Updates of length 1, 2 and 60 become 2, 2 and 2 long.
    assert combined((2.0, 1.0), (1.0, 3.0), (61.0, 1.0)) == pytest.approx([1 + 4 / 3, 1 + 2 / 3])


def test_who_did_not_move_stays():
    assert combined((1.0, 1.0), (1.0, 4.0), (1.0, 7.0)) == [1.0, 3.0]
