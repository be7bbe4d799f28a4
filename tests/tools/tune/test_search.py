from __future__ import annotations

import random

import pytest
from jsonargparse import dict_to_namespace

from fedvlp.tools.tune.search import Space, spaces_of, trials_of
from fedvlp.utils.errors import UserError

LEARNS = dict_to_namespace({"model": {"init_args": {"prompt_length": 16, "optimizer": {"init_args": {"lr": 0.002}}}}})
RATES = "model.optimizer.lr=0.001,0.01"


def test_a_grid_has_all_combinations():
    spaces = spaces_of(LEARNS, [RATES, "trainer.rounds=1,2"])
    assert trials_of(spaces, None, 0) == [
        ("--model.optimizer.lr=0.001", "--trainer.rounds=1"),
        ("--model.optimizer.lr=0.001", "--trainer.rounds=2"),
        ("--model.optimizer.lr=0.01", "--trainer.rounds=1"),
        ("--model.optimizer.lr=0.01", "--trainer.rounds=2"),
    ]


def test_draws_begin_with_the_config_and_more_of_them_go_on():
    spaces = [Space.parse("model.optimizer.lr=loguniform(1e-4,1e-2)"), Space.parse("model.prompt_length=integer(2,5)")]
    few = trials_of(spaces, 3, seed=1)
    assert few[0] == ()
    assert trials_of(spaces, 8, seed=1)[:3] == few
    assert trials_of(spaces, 3, seed=2)[1:] != few[1:]
    alone = trials_of(spaces[:1], 3, seed=1)
    assert [trial[:1] for trial in few] == alone, "another option changes no draw"


def test_equal_draws_are_tried_once():
    trials = trials_of([Space.parse("model.prompt_length=4,8")], 20, seed=0)
    assert sorted(trials) == [(), ("--model.prompt_length=4",), ("--model.prompt_length=8",)]


@pytest.mark.parametrize(
    ("text", "low", "high"), [("loguniform(1e-4, 1e-2)", 1e-4, 1e-2), ("uniform(-1,1)", -1, 1), ("integer(2,4)", 2, 4)]
)
def test_draws_fill_their_interval(text, low, high):
    generator = random.Random(0)
    space = Space.parse(f"model.optimizer.lr={text}")
    drawn = sorted(float(space.draw(generator)) for _ in range(1000))
    assert low <= drawn[0] < drawn[-1] <= high
    middle = (low * high) ** 0.5 if text.startswith("log") else (low + high) / 2
    assert drawn[500] == pytest.approx(middle, rel=0.15, abs=0.1 if text.startswith("uniform") else 0)


def test_auto_is_the_learning_rate_around_the_configs():
    (space,) = spaces_of(LEARNS, ["auto"])
    assert (space.option, space.distribution) == ("model.optimizer.lr", "loguniform")
    assert (space.low, space.high) == pytest.approx((0.0002, 0.02))


def test_a_method_that_lacks_an_option_is_tried_once():
    zero_shot = dict_to_namespace({"model": {"init_args": {"templates": 1}}})
    assert trials_of(spaces_of(zero_shot, ["auto", RATES]), 8, 0) == [()]
    assert [space.option for space in spaces_of(zero_shot, ["trainer.rounds=1,2"])] == ["trainer.rounds"]


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.1,0.2",
        "--model.optimizer.lr=0.1",
        "model.optimizer.lr=",
        "model.optimizer.lr=normal(0,1)",
        "model.optimizer.lr=loguniform(0,1)",
        "model.optimizer.lr=uniform(1,1)",
        "model.optimizer.lr=uniform(a,b)",
        "model.prompt_length=integer(1,2.5)",
    ],
)
def test_what_is_no_space_is_an_error(text):
    with pytest.raises(UserError, match="Expected --search"):
        Space.parse(text)


def test_a_grid_of_draws_is_an_error():
    with pytest.raises(UserError, match="Say by --trials how many"):
        trials_of(spaces_of(LEARNS, ["auto"]), None, 0)
