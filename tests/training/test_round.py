"""A round's seeds, cohorts and metrics, and the tensors that the method has after training."""

from itertools import product

import pytest
import torch

from fedvlp.core.phases import Phase
from fedvlp.core.state import Client, ClientUpdate
from fedvlp.core.strategies import FedAvg, MovingAverage, ema_share
from fedvlp.training import round as one_round
from fedvlp.training.cohort import sample_cohort
from fedvlp.training.round import local_metrics
from fedvlp.utils.seeding import derive_seed
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, make_callback


class LoaderRecorder(Points):
    """Points that record the client and the seed of each requested loader."""

    def __init__(self, clients=3):
        super().__init__(clients)
        self.requests = []

    def train_dataloader(self, client=None, seed=None, once=False):
        self.requests.append((client.id, seed))
        return super().train_dataloader(client, seed)


def test_every_round_phase_and_client_has_its_own_seed(tmp_path):
    data = LoaderRecorder()
    federation(tmp_path, rounds=2, seed=5).fit(PersonalBias(), data)
    expected = [(client, derive_seed(5, *where, client)) for *where, client in product(range(2), range(2), range(3))]
    assert data.requests == expected, "by round, phase and client"
    assert len({seed for _, seed in expected}) == 12


def test_a_continued_pass_keeps_its_seed(tmp_path):
    """Client 1 has three batches, and half a pass takes two: round 1 uses the end of pass 0 and pass 1."""
    data = LoaderRecorder()
    federation(tmp_path, rounds=2, seed=5, epochs=0.5).fit(PersonalBias(), data)
    first = {seed for client, seed in data.requests if client == 1}
    assert first == {derive_seed(5, number, phase, 1) for number in range(2) for phase in range(2)}
    second = {seed for client, seed in data.requests if client == 2}
    assert second == {derive_seed(5, 0, phase, 2) for phase in range(2)}


def test_cohorts_depend_on_seed_and_round_and_are_shared_by_phases(tmp_path):
    data = Points(clients=7)
    cohorts, calls = [], []

    def start(federation, phases, cohort):
        cohorts.append(cohort)
        calls.append([phase.name for phase in phases])

    def end(federation, task, server, updates):
        calls.append((task.phase.name, task.round, server.round, [update.client.id for update in updates]))

    callback = make_callback(on_round_start=start, on_phase_end=end)
    federation(tmp_path, rounds=3, seed=5, cohort_size=3, callbacks=[callback]).fit(PersonalBias(), data)
    assert cohorts == [sample_cohort(data.clients, 3, derive_seed(5, number)) for number in range(3)]
    expected = []
    for number, cohort in enumerate(cohorts):
        ids = [client.id for client in cohort]
        expected += [["both", "weight"], ("both", number, number, ids), ("weight", number, number, ids)]
    assert calls == expected


@pytest.mark.parametrize(("most", "named"), [(3, True), (2, False)])
def test_many_clients_are_summarized_by_mean_min_and_max(tmp_path, monkeypatch, most, named):
    monkeypatch.setattr(one_round, "MOST_COLUMNS", most)
    run = federation(tmp_path, rounds=1, cohort_size=2)
    run.fit(Linear(), Points(clients=3))
    columns = {name for name in run.run_state.history[0] if name.startswith("client")}
    assert len(columns) == (2 if named else 3)
    assert ("clients/loss/mean" in columns) != named


def test_summaries_ignore_clients_that_did_not_log_the_metric():
    logged = [{"loss": 4.5, "kl": 0.25}, {"loss": 1.0}, {"kl": 0.75, "loss": 2.0}]
    updates = [ClientUpdate(Client(i, 0, 1, f"c{i}"), {}, 1, metrics) for i, metrics in enumerate(logged)]
    assert local_metrics(updates, by_client=False) == {
        "clients/loss/mean": 2.5,
        "clients/loss/min": 1.0,
        "clients/loss/max": 4.5,
        "clients/kl/mean": 0.5,
        "clients/kl/min": 0.25,
        "clients/kl/max": 0.75,
    }
    assert local_metrics(updates, by_client=True)["client/c2/kl"] == 0.75
    assert len(local_metrics(updates, by_client=True)) == 5


class Averaged(Linear):
    """Deploys an average over rounds, and broadcasts the latest weight."""

    def configure_phases(self):
        strategy = MovingAverage(FedAvg(), ema_share(0.75), ("weight",))
        return [Phase("train", train=("weight",), upload=("weight",), strategy=strategy)]


def test_the_method_has_the_deployed_tensors_after_training(tmp_path):
    module = Averaged()
    server = federation(tmp_path, rounds=2).fit(module, Points())
    assert not torch.equal(server.shared["weight"], server.deployed["weight"])
    assert torch.equal(module.weight, server.deployed["weight"])
