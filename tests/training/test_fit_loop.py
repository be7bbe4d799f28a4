"""The fit loop: the order of callbacks, evaluation, and resumed runs."""

from dataclasses import dataclass, field

import pytest
import torch

from fedvlp.training.cohort import Attack
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks, make_callback


def test_hooks_are_called_in_order(tmp_path):
    hooks = []

    def end_epoch(trainer, module):
        row = trainer.run_state.history[-1]
        hooks.append(("on_train_epoch_end", row["round"]))
        row["added"] = 10.0 * row["round"]

    def end_round(federation, row):
        state = federation.run_state
        assert row is state.history[-1]
        hooks.append(("on_round_end", row["round"], state.server.round, len(state.history)))

    recorder = make_callback(
        setup=lambda trainer, module, stage: hooks.append(("setup", stage)),
        on_fit_start=lambda *_: hooks.append("on_fit_start"),
        on_round_start=lambda *_: hooks.append("on_round_start"),
        on_phase_end=lambda federation, task, *_: hooks.append(f"on_phase_end {task.phase.name}"),
        on_train_epoch_end=end_epoch,
        on_round_end=end_round,
        on_fit_end=lambda *_: hooks.append("on_fit_end"),
    )
    run = federation(tmp_path, rounds=2, callbacks=[recorder])
    run.fit(PersonalBias(), Points())
    expected = [("setup", "fit"), "on_fit_start"]
    for number in (1, 2):
        expected += ["on_round_start", "on_phase_end both", "on_phase_end weight"]
        expected += [("on_train_epoch_end", number), ("on_round_end", number, number, number)]
    assert hooks == [*expected, "on_fit_end"]
    assert [row["added"] for row in run.run_state.history] == [10.0, 20.0]


@pytest.mark.parametrize(("rounds", "every", "evaluated"), [(5, 2, [2, 4, 5]), (2, 5, [2])])
def test_every_nth_round_and_the_last_are_evaluated(tmp_path, rounds, every, evaluated):
    run = federation(tmp_path, rounds=rounds, evaluate_every=every)
    run.fit(Linear(), Points())
    history = run.run_state.history
    assert [row["round"] for row in history] == list(range(1, rounds + 1))
    assert [row["round"] for row in history if "validation" in row] == evaluated
    assert all(0 < row["train_seconds"] <= row["seconds"] < 60 for row in history)
    assert all((row["train_seconds"] < row["seconds"]) for row in history if "validation" in row)


def test_evaluation_uses_the_deployed_tensors_after_the_round(tmp_path, monkeypatch):
    run = federation(tmp_path, rounds=2)
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
    """An attack that changes nothing and records the evaluated data."""

    clients: float = 0.0
    seed: int = 0
    data: list = field(default_factory=list)

    def measure(self, module, data, fabric, deployed, personal):
        self.data.append(data)
        return {"success": 12.5}


def test_an_attack_is_measured_with_each_evaluation(tmp_path):
    attack = Measured()
    data = Points()
    run = federation(tmp_path, rounds=3, evaluate_every=2, attack=attack)
    run.fit(Linear(), data)
    assert [row.get("success") for row in run.run_state.history] == [None, 12.5, 12.5]
    assert attack.data == [data, data]


def test_a_run_resumes_in_its_own_folder_only_on_request(tmp_path):
    options = {"name": "run", **file_callbacks()}
    first = federation(tmp_path, rounds=1, **options)
    first.fit(Linear(), Points())
    second = federation(tmp_path, rounds=1, **options)
    second.fit(Linear(), Points())
    assert first.folder != second.folder
    assert first.folder.parent == second.folder.parent == tmp_path / "run"
    resumed = federation(tmp_path, rounds=3, **options)
    resumed.fit(Linear(), Points(), ckpt_path=str(first.folder))
    assert resumed.folder == first.folder
    assert [row["round"] for row in resumed.run_state.history] == [1, 2, 3]
    assert [row["round"] for row in second.run_state.history] == [1]


def test_a_second_fit_starts_from_scratch(tmp_path):
    run = federation(tmp_path, rounds=2)
    one = run.fit(Linear(), Points())
    again = run.fit(Linear(), Points())
    assert torch.equal(one.shared["weight"], again.shared["weight"])
    assert len(run.run_state.history) == 2


class TrainsNothing(Linear):
    """Trains nothing."""

    def configure_phases(self):
        return ()


def test_a_method_without_phases_has_no_rounds(tmp_path):
    run = federation(tmp_path, rounds=3, **file_callbacks())
    run.fit(TrainsNothing(), Points())
    assert run.run_state.history == ()
    assert run.run_state.server.round == 0
