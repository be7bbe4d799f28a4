"""A federation trains and evaluates through its engine."""

import torch

from fedvlp.core.state import ClientUpdate
from fedvlp.training.engine import LocalEngine, PhaseResults
from fedvlp.training.evaluation import evaluate
from fedvlp.training.task import ClientResult
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation


class Elsewhere(LocalEngine):
    """Clients upload three times their id, and evaluation returns a fixed number."""

    def train(self, clients, task, workspace):
        uploads = [(client, {"weight": torch.full((3, 4), 3.0 * client.id)}) for client in clients]
        results = [ClientResult(ClientUpdate(client, state, client.num_examples), {}, {}) for client, state in uploads]
        return PhaseResults(results)

    def evaluate(self, run, module, deployed, personal):
        return {"validation/client0": 12.5, "validation": 12.5}


def test_a_custom_engine_trains_and_evaluates(tmp_path):
    run = federation(tmp_path, rounds=1)
    run.engine = Elsewhere()
    server = run.fit(Linear(), Points())
    expected = (8 * 0 + 12 * 3 + 16 * 6) / (8 + 12 + 16)
    assert torch.allclose(server.shared["weight"], torch.full((3, 4), expected))
    assert run.run_state.history[0]["validation"] == 12.5


def test_an_untrained_client_is_evaluated_with_its_initial_personal_tensors(tmp_path):
    """It must not use the tensors of the client evaluated before it."""
    run = federation(tmp_path, rounds=1, cohort_size=1, seed=2)
    module = PersonalBias()
    initial = {"bias": torch.tensor([0.5, -0.25, 0.75])}
    module.load_state(initial)
    run.fit(module, Points())
    trained = dict(run.run_state.personal)
    assert len(trained) == 1
    deployed = run.run_state.server.deployed
    personal = {client.id: trained.get(client.id, initial) for client in Points().clients}
    expected = evaluate(module, run.data, run.fabric, deployed, personal)
    for other in ({}, *trained.values()):  # the method's previous tensors must have no effect
        module.load_state(other)
        assert run.evaluate(module, deployed, trained) == expected
    wrong = {client: next(iter(trained.values())) for client in personal}
    assert evaluate(module, run.data, run.fabric, deployed, wrong) != expected
