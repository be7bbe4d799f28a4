"""A federation trains and measures where its engine says."""

import torch

from fedvlp.core.state import ClientUpdate
from fedvlp.training.engine import LocalEngine, PhaseResults
from fedvlp.training.evaluation import evaluate
from fedvlp.training.task import ClientResult
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation


class Elsewhere(LocalEngine):
    """Clients that send three times their number, and are measured by a number that no other engine would give."""

    def train(self, clients, task, here):
        sent = [(client, {"weight": torch.full((3, 4), 3.0 * client.id)}) for client in clients]
        results = [ClientResult(ClientUpdate(client, state, client.num_examples), {}, {}) for client, state in sent]
        return PhaseResults(results)

    def evaluate(self, run, module, deployed, personal):
        return {"validation/client0": 12.5, "validation": 12.5}


def test_another_engine_trains_and_measures(tmp_path):
    run = federation(tmp_path, rounds=1)
    run.engine = Elsewhere()
    server = run.fit(Linear(), Points())
    expected = (8 * 0 + 12 * 3 + 16 * 6) / (8 + 12 + 16)
    assert torch.allclose(server.shared["weight"], torch.full((3, 4), expected))
    assert run.run_state.history[0]["validation"] == 12.5


def test_a_client_that_never_trained_is_measured_with_what_it_would_begin_with(tmp_path):
    """And not with the tensors of the client that was measured before it."""
    run = federation(tmp_path, rounds=1, cohort_size=1, seed=2)
    module = PersonalBias()
    initial = {"bias": torch.tensor([0.5, -0.25, 0.75])}
    module.load_state(initial)
    run.fit(module, Points())
    trained = dict(run.run_state.personal)
    assert len(trained) == 1
    deployed = run.run_state.server.deployed
    everybody = {client.id: trained.get(client.id, initial) for client in Points().clients}
    expected = evaluate(module, run.data, run.fabric, deployed, everybody)
    for other in ({}, *trained.values()):  # what the method held before must not matter
        module.load_state(other)
        assert run.evaluate(module, deployed, trained) == expected
    wrong = {client: next(iter(trained.values())) for client in everybody}
    assert evaluate(module, run.data, run.fabric, deployed, wrong) != expected
