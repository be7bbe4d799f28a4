"""Checkpoints and prompts restore each tensor unchanged under its name."""

from dataclasses import replace

import pytest
import torch

from fedvlp.core.state import RunState, ServerState, detached
from fedvlp.runs.checkpoint import differences, load_checkpoint, load_deployed, save_checkpoint, save_prompts
from fedvlp.runs.run_folder import read_model
from fedvlp.utils.tensor_files import read_tensors
from tests.helpers.assertions import assert_equal, assert_same_run

MODEL = {"class_path": "some.Method", "init_args": {"clip": {}, "b": 3, "a": [0.5]}, "clip_fingerprint": "00ff"}
DESCRIPTION = {"model": MODEL, "optimizer": {"lr": 0.25}, "protocol": "p", "split": "s", "training": {"seed": 5}}


@pytest.fixture
def state():
    """Make a state without equal tensors, and with names that occur in several groups."""
    numbers = iter(torch.arange(1.0, 100.0).split(3))
    return RunState(
        server=ServerState(
            shared={"prompt": next(numbers), "router.keys": next(numbers)},
            deployed={"prompt": next(numbers), "bias": next(numbers)},
            memory={"0/0/velocity/prompt": next(numbers)},
            round=7,
        ),
        personal={4: {"bias": next(numbers), "prompt": next(numbers)}, 1: {"bias": next(numbers)}},
        history=({"round": 6, "loss": 0.5}, {"round": 7, "loss": 0.25, "note": "x"}),
        optimizer_states={2: {"prompt/exp_avg": next(numbers)}, 1: {"prompt/exp_avg": next(numbers)}},
    )


def test_a_checkpoint_is_restored_unchanged(state, tmp_path):
    path = tmp_path / "checkpoints" / "round-00007.safetensors"
    save_checkpoint(path, state, DESCRIPTION)
    found, description = load_checkpoint(path)
    assert_same_run(found, state)
    assert found.history == state.history
    assert found.server.round == 7
    assert (list(found.personal), list(found.optimizer_states)) == ([1, 4], [1, 2]), "in any order of training"
    assert description == DESCRIPTION
    assert read_model(path) == MODEL


def test_tensors_both_shared_and_deployed_are_written_once(state, tmp_path):
    shared = {"prompt": torch.arange(1000.0), "router.keys": torch.arange(3.0)}
    both = replace(state, server=replace(state.server, shared=shared, deployed=dict(shared)))
    equal = replace(state, server=replace(state.server, shared=shared, deployed=detached(shared)))
    sizes = []
    for name, each in {"both": both, "equal": equal}.items():
        save_checkpoint(tmp_path / name, each, DESCRIPTION)
        assert_same_run(load_checkpoint(tmp_path / name)[0], both)
        assert_equal(load_deployed(tmp_path / name)[0], shared)
        sizes.append((tmp_path / name).stat().st_size)
    assert 4000 < sizes[1] - sizes[0] < 4500
    assert "deployed/prompt" not in read_tensors(tmp_path / "both")[0]


def test_a_checkpoint_is_deployed_without_tensors_that_are_only_shared(state, tmp_path):
    save_checkpoint(tmp_path / "a", state, DESCRIPTION)
    save_prompts(tmp_path / "b", state.server.deployed, state.personal, MODEL)
    for name in "ab":
        deployed, personal, model = load_deployed(tmp_path / name)
        assert model == MODEL == read_model(tmp_path / name)
        assert_equal(deployed, state.server.deployed)
        assert personal.keys() == {1, 4}
        for client, expected in state.personal.items():
            assert_equal(personal[client], expected)


def test_differences_have_paths_and_are_sorted():
    saved = {"b": {"y": 1, "x": [2]}, "a": 3, "gone": {"z": 0}, "same": {"k": None}}
    now = {"b": {"y": 4, "x": [5]}, "a": 3, "new": False, "same": {"k": None}}
    assert differences(saved, now) == [
        "b.x: was [2], is [5]",
        "b.y: was 1, is 4",
        "gone: was {'z': 0}, is None",
        "new: was None, is False",
    ]
    assert differences({"a": {}}, {"a": 3}, "model") == ["model.a: was {}, is 3"]
