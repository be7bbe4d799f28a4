"""Whole epochs, fractions of an epoch and steps: which batches a client sees in a round."""

from __future__ import annotations

from itertools import chain

import pytest

from fedvlp.training.local_training import LocalTraining, num_steps
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation

BATCHES = 6


def loader_of(number):
    """Six batches, named by their shuffle's number and their place in it."""
    return [(number, place) for place in range(BATCHES)]


def rounds_of(local, rounds):
    """The batches of each round."""
    return [list(local.batches(loader_of, round)[0]) for round in range(rounds)]


def test_half_epochs_go_on_through_the_same_shuffle():
    rounds = rounds_of(LocalTraining(epochs=0.5), 3)
    assert rounds[0] == [(0, 0), (0, 1), (0, 2)]
    assert rounds[1] == [(0, 3), (0, 4), (0, 5)]
    assert rounds[2] == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("epochs", [0.01, 0.25, 0.4, 0.7, 1.5, 2.3])
def test_fractions_leave_out_and_repeat_nothing(epochs):
    """All rounds together are an unbroken row of passes."""
    seen = list(chain(*rounds_of(LocalTraining(epochs=epochs), 20)))
    assert seen == [divmod(position, BATCHES) for position in range(len(seen))]
    assert len(seen) == 20 * num_steps(BATCHES, epochs, None)


def test_whole_epochs_and_steps_shuffle_anew_in_each_round():
    assert rounds_of(LocalTraining(epochs=2), 2) == [2 * loader_of(0), 2 * loader_of(1)]
    assert rounds_of(LocalTraining(epochs=2.0), 2) == rounds_of(LocalTraining(epochs=2), 2)
    assert rounds_of(LocalTraining(steps=4), 2) == [loader_of(0)[:4], loader_of(1)[:4]]
    assert rounds_of(LocalTraining(steps=7), 1) == [[*loader_of(0), (0, 0)]]


@pytest.mark.parametrize(
    ("batches", "epochs", "steps"),
    [(10, 0.5, 5), (5, 0.5, 3), (1, 0.01, 1), (30, 0.1, 3), (10, 1.1, 11), (7, 1, 7), (7, 3, 21), (3, 2 / 3, 2)],
)
def test_number_of_steps(batches, epochs, steps):
    """Rounded up, and not because 1.1 * 10 is a little more than 11 in floating point."""
    assert num_steps(batches, epochs, None) == steps


def batches_seen(tmp_path, **options):
    """Which points each client saw, by round and client; from the inputs of its training steps."""
    seen = {}

    class Seen(Linear):
        def training_step(self, batch, batch_idx):
            where = (self.context.round, self.context.client.id)
            seen.setdefault(where, []).append(batch[0]["features"].tolist())
            return super().training_step(batch, batch_idx)

    federation(tmp_path, **options).fit(Seen(), options.pop("data", None) or Points())
    return seen


def test_half_epochs_in_a_federation(tmp_path):
    """Client 0 has two batches, so rounds 0 and 1 see its points once each; as the whole pass of seed 0 would."""
    halves = batches_seen(tmp_path, epochs=0.5, rounds=2)
    whole = batches_seen(tmp_path, rounds=1)
    for client in (0, 2):  # 2 and 4 batches; client 1 has 3, so its second round begins another pass
        assert halves[0, client] + halves[1, client] == whole[0, client]
    assert (halves[0, 1] + halves[1, 1])[:3] == whole[0, 1]


def test_place_in_a_pass_does_not_depend_on_who_took_part(tmp_path):
    alone = batches_seen(tmp_path, epochs=0.5, rounds=6, cohort_size=1)
    together = batches_seen(tmp_path, epochs=0.5, rounds=6)
    assert len(alone) == 6
    assert all(together[where] == batches for where, batches in alone.items())


def test_optimizer_and_fractions_are_part_of_the_run(tmp_path):
    federation(tmp_path, name="run").fit(Linear(), Points())
    for change, expected in [
        ({"reset_optimizer": False}, "training.reset_optimizer: was True, is False"),
        ({"epochs": 0.5}, "training.local_epochs: was 1, is 0.5"),
    ]:
        with pytest.raises(UserError, match=expected):
            federation(tmp_path, name="run", **change).fit(Linear(), Points(), ckpt_path="last")


def test_steps_and_epochs_at_once_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"local.steps or local.epochs, got both \(3 and 0.5\)"):
        federation(tmp_path, epochs=0.5, steps=3)


@pytest.mark.parametrize("epochs", [0, -0.5, float("inf"), float("nan")])
def test_epochs_must_be_above_zero(tmp_path, epochs):
    with pytest.raises(UserError, match=r"epochs"):
        federation(tmp_path, epochs=epochs)
