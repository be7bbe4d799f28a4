"""Runs with DPFedAvg: noise in every phase and round, its source, and epsilon in metrics and summary."""

import csv
import itertools
import json

import numpy as np
import pytest
import torch

from fedvlp.callbacks import Privacy
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.results import load_record
from fedvlp.training.privacy_accounting import PrivacyAccount
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, make_callback


def private(noise_multiplier=1.0, clip_norm=0.5, **options):
    return DPFedAvg(clip_norm, noise_multiplier, **options)


class Still(Linear):
    """Two phases that learn nothing, so that only noise changes tensors."""

    def __init__(self):
        super().__init__(learning_rate=0.0)

    def configure_phases(self):
        return [Phase(name, ("weight",), ("weight",), FedAvg()) for name in ("one", "two")]


def test_every_phase_and_round_has_different_noise(tmp_path):
    weights = [torch.zeros(3, 4)]
    steps = make_callback(on_phase_end=lambda _, task, server, updates: weights.append(server.shared["weight"]))
    federation(tmp_path, aggregation=private(), default_callbacks=False, callbacks=steps).fit(Still(), Points())
    steps = [(after - before).flatten() for before, after in itertools.pairwise(weights)]
    assert len(steps) == 6
    assert np.std(torch.cat(steps).numpy()) == pytest.approx(0.5 / 3, rel=0.25)
    assert len({tuple(step.tolist()) for step in steps}) == 6


@pytest.mark.parametrize("noise_from", ["seed", "system"])
def test_the_cohort_is_drawn_from_the_same_source_as_the_noise(tmp_path, noise_from):
    drawn = []
    for _ in range(2):
        cohorts = []
        record = make_callback(on_round_start=lambda _, phases, cohort, cohorts=cohorts: cohorts.append(cohort))
        rule = private(noise_from=noise_from)
        run = federation(tmp_path, rounds=4, cohort_size=4, aggregation=rule, callbacks=record)
        run.fit(Linear(), Points(clients=9))
        assert {len({client.id for client in cohort}) for cohort in cohorts} == {4}
        drawn.append(cohorts)
    assert (drawn[0] == drawn[1]) == (noise_from == "seed")


def test_epsilon_is_in_metrics_summary_and_output(tmp_path, capsys):
    run = federation(tmp_path, aggregation=private(delta=1e-6), cohort_size=5, default_callbacks=True)
    run.fit(PersonalBias(), Points(clients=9))
    account = PrivacyAccount((1.0, 1.0), 9, 5, 1e-6, repeats=True)
    with open(run.folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [account.epsilon(rounds) for rounds in (1, 2, 3)]
    assert [float(row["privacy/epsilon"]) for row in rows] == pytest.approx(expected, rel=1e-9)
    assert {row["privacy/delta"] for row in rows} == {"1e-06"}
    summary = json.loads((run.folder / "summary.json").read_text("utf-8"))
    assert summary["privacy"] == {"epsilon": pytest.approx(expected[2], rel=1e-9), "delta": 1e-6}
    assert summary["training"]["server"]["aggregation"]["noise_multiplier"] == 1.0
    assert capsys.readouterr().out.count(account.describe(3)) == 2
    assert load_record(run.folder).rounds == 3  # records accept the long seed of the noise


def test_a_run_without_noise_does_not_mention_privacy(tmp_path, capsys):
    run = federation(tmp_path, rounds=1, default_callbacks=True)
    run.fit(Linear(), Points())
    assert not [name for name in run.run_state.history[0] if "privacy" in name]
    assert "privacy" not in json.loads((run.folder / "summary.json").read_text("utf-8"))
    assert "privacy" not in capsys.readouterr().out


def test_a_skipped_client_adds_zero_and_epsilon_stays_the_same(tmp_path):
    options = {"rounds": 1, "default_callbacks": False}
    spoilt = federation(tmp_path, aggregation=private(0.0, 1e9), **options)
    weight = spoilt.fit(Linear(), Points(spoil=True)).shared["weight"]
    plain = federation(tmp_path, aggregation=private(0.0, 1e9, expected_clients=2), **options)

    class Others(Points):
        def __init__(self):
            super().__init__()
            self.clients = self.clients[1:]

    others = plain.fit(Linear(), Others()).shared["weight"]
    assert torch.allclose(weight, others * 2 / 3, atol=1e-6)
    noisy = [federation(tmp_path, rounds=1, aggregation=private(), callbacks=Privacy()) for _ in range(2)]
    for run, spoil in zip(noisy, (True, False), strict=True):
        run.fit(Linear(), Points(spoil=spoil))
    assert noisy[0].run_state.history[0]["clients/rejected"] == 1
    assert len({run.run_state.history[0]["privacy/epsilon"] for run in noisy}) == 1


def test_noise_at_clients_is_part_of_their_uploads(tmp_path):
    sent = []

    def note(federation, task, server, updates):
        sent.append(torch.stack([update.state["weight"].clone() for update in updates]))

    for noise in (0.0, 1.5):
        rule = private(noise, clip_norm=0.25, noise_at="client")
        options = {"rounds": 1, "callbacks": make_callback(on_phase_end=note)}
        run = federation(tmp_path, aggregation=rule, **options)
        before = Linear().weight.detach().clone()
        found = run.fit(Linear(), Points(clients=6)).shared["weight"]
        torch.testing.assert_close(found, sent[-1].mean(0), rtol=0, atol=1e-6)
    assert (sent[0] - before).flatten(1).norm(dim=1).max() <= 0.25 + 1e-6
    noise = (sent[1] - sent[0]).flatten()
    assert noise.std().item() == pytest.approx(1.5 * 0.25, rel=0.25)
    assert len(set(noise.tolist())) == len(noise)
