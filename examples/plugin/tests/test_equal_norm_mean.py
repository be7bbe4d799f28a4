import pytest
import torch

from fedvlp.testing import check_aggregator
from my_prompts.equal_norm_mean import EqualNormMean

BEFORE = {"prompt": torch.tensor([1.0, 1.0])}


def combine(*uploads: tuple[float, float]) -> list[float]:
    states = [{"prompt": torch.tensor(upload)} for upload in uploads]
    return EqualNormMean().combine(states, [1] * len(states), BEFORE)["prompt"].tolist()


def test_contract():
    check_aggregator(EqualNormMean())


def test_updates_get_the_median_norm():
    # Updates with norms 1, 2 and 60 all get norm 2.
    assert combine((2.0, 1.0), (1.0, 3.0), (61.0, 1.0)) == pytest.approx([1 + 4 / 3, 1 + 2 / 3])


def test_update_of_norm_zero_stays():
    assert combine((1.0, 1.0), (1.0, 4.0), (1.0, 7.0)) == [1.0, 3.0]
