import pytest
from jsonargparse import ArgumentParser, dict_to_namespace

import fedvlp
from fedvlp.results.record import LINKED_OPTIONS
from fedvlp.tools.tune.search import LEARNING_RATE, Space, automatic_spaces, make_trials, select_spaces
from fedvlp.utils.errors import UserError


def make_config(kind, **options):
    """Make a parsed configuration of a method with a learning rate of 0.002."""
    options["optimizer"] = {"init_args": {"lr": 0.002}}
    return dict_to_namespace({"model": {"class_path": kind, "init_args": options}})


LEARNS = make_config("own.Method", prompt_length=16)
RATES = "model.optimizer.lr=0.001,0.01"


def test_a_grid_has_all_combinations():
    spaces = select_spaces(LEARNS, [RATES, "trainer.rounds=1,2"])
    assert make_trials(spaces, None, 0) == [
        ("--model.optimizer.lr=0.001", "--trainer.rounds=1"),
        ("--model.optimizer.lr=0.001", "--trainer.rounds=2"),
        ("--model.optimizer.lr=0.01", "--trainer.rounds=1"),
        ("--model.optimizer.lr=0.01", "--trainer.rounds=2"),
    ]


def test_draws_start_with_the_config_and_more_trials_extend_them():
    spaces = [Space.parse("model.optimizer.lr=loguniform(1e-4,1e-2)"), Space.parse("model.prompt_length=integer(2,5)")]
    few = make_trials(spaces, 3, seed=1)
    assert few[0] == ()
    assert make_trials(spaces, 8, seed=1)[:3] == few
    assert make_trials(spaces, 3, seed=2)[1:] != few[1:]
    rates_only = make_trials(spaces[:1], 3, seed=1)
    assert [trial[:1] for trial in few] == rates_only, "another option changes no draw"


def test_equal_draws_are_tried_once():
    trials = make_trials([Space.parse("model.prompt_length=4,8")], 20, seed=0)
    assert sorted(trials) == [(), ("--model.prompt_length=4",), ("--model.prompt_length=8",)]
    with pytest.raises(UserError, match="Pass --trials, the number of draws"):
        make_trials(select_spaces(LEARNS, ["auto"]), None, 0)


def test_auto_has_options_of_the_method_that_the_config_enables():
    options = {"kl_weight": 0.8, "train_capacity": None, "eval_capacity": 2.0}
    spaces = select_spaces(make_config("fedvlp.TRIP", **options), ["auto"])
    assert [space.option for space in spaces] == [LEARNING_RATE, "model.kl_weight", "model.eval_capacity"]
    assert (spaces[0].low, spaces[0].high) == pytest.approx((0.0002, 0.02))
    spaces = select_spaces(
        make_config("fedvlp.PromptFL", kl_weight=0.0, prompt_length=4), ["auto", "model.prompt_length=2,3"]
    )
    assert [str(space) for space in spaces] == ["model.optimizer.lr=loguniform(0.0002,0.02)", "model.prompt_length=2,3"]


def test_limits_of_automatic_spaces_are_valid_values():
    for kind, spaces in automatic_spaces().items():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(getattr(fedvlp, kind), "model", skip={"optimizer", *LINKED_OPTIONS})
        for end in (0, -1):
            ends = {space.option: (space.values or (space.low, space.high))[end] for space in spaces}
            assert parser.parse_args([f"--{option}={value}" for option, value in ends.items()])


def test_a_method_that_lacks_an_option_is_tried_once():
    zero_shot = dict_to_namespace({"model": {"class_path": "fedvlp.ZeroShotCLIP", "init_args": {"templates": 1}}})
    assert make_trials(select_spaces(zero_shot, ["auto", RATES]), 8, 0) == [()]
    assert [space.option for space in select_spaces(zero_shot, ["trainer.rounds=1,2"])] == ["trainer.rounds"]


def test_invalid_spaces_are_errors():
    values = ("lr=0.1,0.2", "model.optimizer.lr=normal(0,1)", "model.optimizer.lr=loguniform(0,1)")
    for text in (*values, "model.optimizer.lr=uniform(a,b)", "model.prompt_length=integer(1,2.5)"):
        with pytest.raises(UserError, match="Expected --search"):
            Space.parse(text)
