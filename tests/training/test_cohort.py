"""Sampling of cohorts, dropouts and stragglers."""

import csv
import itertools
import math
from collections import Counter

import pytest

from fedvlp.core.aggregation.robust import TrimmedMean
from fedvlp.core.state import Client
from fedvlp.training.cohort import draw_step_shares, present_clients, sample_cohort
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks, make_callback

CLIENTS = [Client(id, 0, size, str(id)) for id, size in ((7, 5), (2, 31), (9, 8), (4, 13), (0, 13), (11, 2), (5, 8))]


def ids(clients):
    return [client.id for client in clients]


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_sample_has_distinct_clients_in_ascending_order(size):
    samples = [ids(sample_cohort(CLIENTS, size, seed)) for seed in range(700)]
    assert all(len(sample) == size and sample == sorted(set(sample)) for sample in samples)
    counts = Counter(itertools.chain(*samples))
    expected = 700 * size / 7
    assert len(counts) == 7
    assert all(abs(count - expected) < 0.25 * expected for count in counts.values())


COHORT = [Client(id, 0, 10 + id, f"client {id}") for id in (1, 4, 5, 7, 9, 12, 20, 21, 22, 30)]


def count_steps(tmp_path, module, data, **options):
    """Train, and count each client's steps and dropouts in each round."""
    taken, absent = Counter(), Counter()

    def step(trainer, module, outputs, *_):
        taken[trainer.run_state.server.round, outputs["client"].id] += 1

    def problem(federation, phase, client, reason, is_skipped):
        assert (reason, is_skipped) == ("dropped out", True)
        absent[federation.run_state.server.round, client.id] += 1

    counter = make_callback(on_train_batch_end=step, on_client_problem=problem)
    made = federation(tmp_path, name="run", callbacks=[*file_callbacks()["callbacks"], counter], **options)
    made.fit(module, data)
    return taken, absent


def test_each_client_drops_out_with_the_given_probability():
    counts = Counter()
    for round in range(2_000):
        present = present_clients(COHORT, 0.3, 1, seed=5, round=round)
        assert present == [client for client in COHORT if client in present], "keeps the order of the cohort"
        counts.update(client.id for client in present)
    for client in COHORT:
        # Six standard deviations of 2,000 draws, plus the few clients that stay to reach the minimum.
        assert abs(counts[client.id] - 1_400) < 125


def test_at_least_the_minimum_number_of_clients_stays():
    for round in range(50):
        assert len(present_clients(COHORT, 0.999, 3, seed=1, round=round)) == 3
    assert present_clients(COHORT, 0.0, 1, seed=1, round=0) == COHORT


def test_a_fixed_share_of_varying_clients_straggles():
    seen = set()
    shares = []
    for round in range(200):
        found = draw_step_shares(COHORT, 0.25, seed=3, round=round)
        assert len(found) == 3  # 2.5, rounded up
        seen |= found.keys()
        shares += found.values()
    assert seen == {client.id for client in COHORT}
    assert 0.1 <= min(shares) < 0.15
    assert 0.95 < max(shares) < 1
    assert len(draw_step_shares(COHORT, 1.0, seed=3, round=0)) == 10
    assert draw_step_shares(COHORT, 0.04, seed=3, round=0) == {}


def test_dropped_clients_do_not_train_and_are_counted(tmp_path):
    taken, absent = count_steps(tmp_path, PersonalBias(), Points(4), dropout=0.5, rounds=6)
    for round in range(6):
        for client in range(4):
            assert ((round, client) in taken) != ((round, client) in absent)
    (path,) = tmp_path.glob("run/*/metrics.csv")
    found = [row["clients/dropped_out"] for row in csv.DictReader(path.read_text().splitlines())]
    expected = Counter(round for round, _ in absent)
    assert found == [str(expected[round]) for round in range(6)]
    assert 0 < len(absent) < 24


def test_stragglers_take_some_of_their_steps(tmp_path):
    taken, _ = count_steps(tmp_path, Linear(), Points(4), stragglers=0.5, rounds=3, epochs=5)
    clients = Points(4).clients
    for round in range(3):
        shares = draw_step_shares(clients, 0.5, seed=0, round=round)
        assert len(shares) == 2
        for client in clients:
            whole = 5 * -(-client.num_examples // 4)
            assert taken[round, client.id] == math.ceil(shares.get(client.id, 1) * whole)


def test_dropout_leaves_enough_uploads_for_the_aggregator(tmp_path):
    options = {**file_callbacks(), "dropout": 0.9, "aggregation": TrimmedMean(share=0.3), "rounds": 4}
    made = federation(tmp_path, name="run", **options)
    made.fit(Linear(), Points(5))
    assert made.run_state.server.round == 4
