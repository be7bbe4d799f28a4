"""From the first round to the last: what callbacks are told when, what is evaluated, where a run goes on."""

from dataclasses import dataclass, field

import pytest
import torch

from fedvlp.training.callback import FederationCallback
from fedvlp.training.cohort import Attack
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks


class Told(FederationCallback):
    """Notes each hook with what the run looks like in it."""

    def __init__(self):
        self.hooks = []

    def setup(self, trainer, pl_module, stage):
        self.hooks.append(("setup", stage))

    def on_fit_start(self, trainer, pl_module):
        self.hooks.append("on_fit_start")

    def on_round_start(self, federation, phases, cohort):
        self.hooks.append("on_round_start")

    def on_phase_end(self, federation, task, *_):
        self.hooks.append(f"on_phase_end {task.phase.name}")

    def on_train_epoch_end(self, trainer, pl_module):
        row = trainer.run_state.history[-1]
        self.hooks.append(("on_train_epoch_end", row["round"]))
        row["added"] = 10.0 * row["round"]

    def on_round_end(self, federation, row):
        state = federation.run_state
        assert row is state.history[-1]
        self.hooks.append(("on_round_end", row["round"], state.server.round, len(state.history)))

    def on_fit_end(self, trainer, pl_module):
        self.hooks.append("on_fit_end")


def round_hooks(number):
    middle = ["on_round_start", "on_phase_end both", "on_phase_end weight"]
    return [*middle, ("on_train_epoch_end", number), ("on_round_end", number, number, number)]


def test_callbacks_are_told_of_each_step_in_its_order(tmp_path):
    told = Told()
    run = federation(tmp_path, rounds=2, default_callbacks=False, callbacks=[told])
    run.fit(PersonalBias(), Points())
    begin = [("setup", "fit"), "on_fit_start"]
    assert told.hooks == [*begin, *round_hooks(1), *round_hooks(2), "on_fit_end"]
    assert [row["added"] for row in run.run_state.history] == [10.0, 20.0]


@pytest.mark.parametrize(("rounds", "every", "evaluated"), [(5, 2, [2, 4, 5]), (2, 5, [2])])
def test_every_so_many_rounds_and_the_last_are_evaluated(tmp_path, rounds, every, evaluated):
    run = federation(tmp_path, rounds=rounds, evaluate_every=every, default_callbacks=False)
    run.fit(Linear(), Points())
    history = run.run_state.history
    assert [row["round"] for row in history] == list(range(1, rounds + 1))
    assert [row["round"] for row in history if "validation" in row] == evaluated
    assert all(0 < row["train_seconds"] <= row["seconds"] < 60 for row in history)
    assert all((row["train_seconds"] < row["seconds"]) for row in history if "validation" in row)


def test_what_is_evaluated_is_what_is_deployed_after_the_round(tmp_path, monkeypatch):
    run = federation(tmp_path, rounds=2, default_callbacks=False)
    seen = []
    monkeypatch.setattr(run, "evaluate", lambda module, deployed, personal: seen.append((deployed, personal)) or {})
    run.fit(PersonalBias(), Points())
    deployed, personal = seen[-1]
    assert torch.equal(deployed["weight"], run.run_state.server.deployed["weight"])
    assert personal.keys() == {0, 1, 2}
    for client, state in run.run_state.personal.items():
        assert torch.equal(personal[client]["bias"], state["bias"])
    assert not torch.equal(seen[0][0]["weight"], deployed["weight"])


@dataclass(frozen=True)
class Measured(Attack):
    """An attack that changes nothing and notes what it measures."""

    clients: float = 0.0
    seed: int = 0
    data: list = field(default_factory=list)

    def measure(self, module, data, fabric, deployed, personal):
        self.data.append(data)
        return {"success": 12.5}


def test_an_attack_is_measured_where_the_run_is_evaluated(tmp_path):
    attack = Measured()
    data = Points()
    run = federation(tmp_path, rounds=3, evaluate_every=2, attack=attack, default_callbacks=False)
    run.fit(Linear(), data)
    assert [row.get("success") for row in run.run_state.history] == [None, 12.5, 12.5]
    assert attack.data == [data, data]


def test_a_run_goes_on_in_its_own_folder_and_only_if_it_is_asked_to(tmp_path):
    options = {"name": "run", **file_callbacks()}
    first = federation(tmp_path, rounds=1, **options)
    first.fit(Linear(), Points())
    anew = federation(tmp_path, rounds=1, **options)
    anew.fit(Linear(), Points())
    assert first.folder != anew.folder
    assert first.folder.parent == anew.folder.parent == tmp_path / "run"
    going_on = federation(tmp_path, rounds=3, **options)
    going_on.fit(Linear(), Points(), ckpt_path=str(first.folder))
    assert going_on.folder == first.folder
    assert [row["round"] for row in going_on.run_state.history] == [1, 2, 3]
    assert [row["round"] for row in anew.run_state.history] == [1]


def test_a_second_fit_of_one_federation_begins_anew(tmp_path):
    run = federation(tmp_path, rounds=2, default_callbacks=False)
    one = run.fit(Linear(), Points())
    again = run.fit(Linear(), Points())
    assert torch.equal(one.shared["weight"], again.shared["weight"])
    assert len(run.run_state.history) == 2


class Nothing(Linear):
    """Trains nothing."""

    def configure_phases(self):
        return ()


def test_a_method_without_phases_has_no_rounds(tmp_path):
    run = federation(tmp_path, rounds=3, **file_callbacks())
    run.fit(Nothing(), Points())
    assert run.run_state.history == ()
    assert run.run_state.server.round == 0
