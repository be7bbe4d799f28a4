import pytest
from jsonargparse import ArgumentParser, dict_to_namespace

import fedvlp
from fedvlp.results.record import LINKED_OPTIONS
from fedvlp.tools.tune.search import LEARNING_RATE, Space, automatic_spaces, spaces_of, trials_of
from fedvlp.utils.errors import UserError


def config_of(kind, **options):
    """A parsed configuration of a method with a learning rate of 0.002."""
    options["optimizer"] = {"init_args": {"lr": 0.002}}
    return dict_to_namespace({"model": {"class_path": kind, "init_args": options}})


LEARNS = config_of("own.Method", prompt_length=16)
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
    with pytest.raises(UserError, match="Say by --trials how many"):
        trials_of(spaces_of(LEARNS, ["auto"]), None, 0)


def test_auto_has_what_the_method_has_and_the_config_switches_on():
    options = {"kl_weight": 0.8, "train_capacity": None, "eval_capacity": 2.0}
    spaces = spaces_of(config_of("fedvlp.TRIP", **options), ["auto"])
    assert [space.option for space in spaces] == [LEARNING_RATE, "model.kl_weight", "model.eval_capacity"]
    assert (spaces[0].low, spaces[0].high) == pytest.approx((0.0002, 0.02))
    spaces = spaces_of(
        config_of("fedvlp.PromptFL", kl_weight=0.0, prompt_length=4), ["auto", "model.prompt_length=2,3"]
    )
    assert [str(space) for space in spaces] == ["model.optimizer.lr=loguniform(0.0002,0.02)", "model.prompt_length=2,3"]


def test_both_ends_of_each_space_of_auto_are_values_of_the_option():
    for kind, spaces in automatic_spaces().items():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(getattr(fedvlp, kind), "model", skip={"optimizer", *LINKED_OPTIONS})
        for end in (0, -1):
            ends = {space.option: (space.values or (space.low, space.high))[end] for space in spaces}
            assert parser.parse_args([f"--{option}={value}" for option, value in ends.items()])


def test_a_method_that_lacks_an_option_is_tried_once():
    zero_shot = dict_to_namespace({"model": {"class_path": "fedvlp.ZeroShotCLIP", "init_args": {"templates": 1}}})
    assert trials_of(spaces_of(zero_shot, ["auto", RATES]), 8, 0) == [()]
    assert [space.option for space in spaces_of(zero_shot, ["trainer.rounds=1,2"])] == ["trainer.rounds"]


def test_what_is_no_space_is_an_error():
    values = ("lr=0.1,0.2", "model.optimizer.lr=normal(0,1)", "model.optimizer.lr=loguniform(0,1)")
    for text in (*values, "model.optimizer.lr=uniform(a,b)", "model.prompt_length=integer(1,2.5)"):
        with pytest.raises(UserError, match="Expected --search"):
            Space.parse(text)
