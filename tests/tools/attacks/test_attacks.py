"""The choice of hostile clients, and their uploads and training data; nothing else changes."""

from dataclasses import dataclass

import pytest
import torch

from fedvlp.core.state import Client
from fedvlp.tools.attacks import GaussianNoise, LabelFlip, Scaling, SignFlip
from fedvlp.training.add_ons import AddOn, LocalResult
from fedvlp.training.callback import FederationCallback
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_equal, run_tensors
from tests.helpers.interruptions import Interrupted, StopAfter
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks

CLIENTS = [Client(id, 0, 5, str(id)) for id in range(10)]


class Received(FederationCallback):
    """Store each upload and the server's state before it, by round, phase and client."""

    def __init__(self):
        self.uploads = {}
        self.before = {}

    def on_phase_end(self, federation, task, server, updates):
        for update in updates:
            key = (task.round, task.phase.name, update.client.id)
            self.uploads[key] = update.state["weight"].clone()
            self.before[key] = task.state.server.shared["weight"].clone()


def fit(tmp_path, attack=None, module=Linear, **options):
    received = Received()
    run = federation(tmp_path, attack=attack, default_callbacks=False, callbacks=[received], **options)
    run.fit(module(), Points(clients=5))
    return run, received


def test_the_seed_chooses_a_number_or_share_of_hostile_clients():
    for clients, count in ((0, 0), (0.3, 3), (0.29, 2), (0.05, 0), (1, 1), (10, 10)):
        assert len(SignFlip(clients).hostile(CLIENTS)) == count
    chosen = [SignFlip(3, seed=seed).hostile(CLIENTS) for seed in range(20)]
    assert chosen[4] == LabelFlip(3, seed=4).hostile(CLIENTS[::-1])
    assert len(set(chosen)) > 10
    assert {id for ids in chosen for id in ids} == set(range(10))


def test_invalid_numbers_of_clients_are_rejected():
    for make in (lambda: SignFlip(-1), lambda: LabelFlip(1.5), lambda: Scaling(1, seed=-2)):
        with pytest.raises(UserError, match="whole number of clients, or a share"):
            make()
    with pytest.raises(UserError, match="at most 10 hostile clients"):
        SignFlip(11).hostile(CLIENTS)


@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (SignFlip(0), lambda value, before: value),
        (SignFlip(2, scale=4.0), lambda value, before: before - 4 * (value - before)),
        (Scaling(2, factor=3.0), lambda value, before: before + 3 * (value - before)),
    ],
)
def test_only_hostile_clients_change_their_uploads(tmp_path, attack, sent):
    hostile = attack.hostile(Points(clients=5).clients)
    _, honest = fit(tmp_path, rounds=1)
    _, attacked = fit(tmp_path, attack, rounds=1)
    for key, value in honest.uploads.items():
        before = attacked.before[key]
        expected = sent(value, before) if key[2] in hostile else value
        assert torch.allclose(attacked.uploads[key], expected, atol=1e-6), key


def test_the_update_is_flipped_around_the_download_in_every_round(tmp_path):
    """From the second round on, the server's tensors are not zero."""
    attack = SignFlip(1)
    (hostile,) = attack.hostile(Points(clients=5).clients)
    _, attacked = fit(tmp_path, attack, rounds=2)
    before = attacked.before[1, "train", hostile]
    assert before.abs().max() > 0
    trained = {}

    @dataclass(frozen=True)
    class RecordUpload(AddOn):
        needs_average = False

        def finish(self, local, upload):
            trained[local.client.id] = upload["weight"].clone()
            return LocalResult(upload)

    options = {"rounds": 2, "attack": attack, "add_ons": RecordUpload(), "default_callbacks": False}
    federation(tmp_path, **options).fit(Linear(), Points(clients=5))
    expected = 2 * before - trained[hostile]
    assert torch.allclose(attacked.uploads[1, "train", hostile], expected, atol=1e-6)


def test_noise_has_its_deviation_and_differs_between_uploads(tmp_path):
    attack = GaussianNoise(2, std=50.0)
    hostile = attack.hostile(Points(clients=5).clients)
    _, attacked = fit(tmp_path, attack, PersonalBias)
    noise = [value for key, value in attacked.uploads.items() if key[2] in hostile]
    assert len(noise) == 2 * 2 * 3
    assert torch.stack(noise).std().item() == pytest.approx(50, rel=0.3)
    assert len({round(value.sum().item(), 3) for value in noise}) == len(noise)


def test_flipped_labels_count_from_the_last_class(tmp_path):
    attack = LabelFlip(2)
    data = Points(clients=5)
    poisoned = attack.training_data(data, Linear())
    hostile = attack.hostile(data.clients)
    assert poisoned.clients == data.clients
    assert poisoned.batch_size == data.batch_size
    for client in data.clients:
        loader = poisoned.train_dataloader(client, seed=3)
        assert len(loader) == len(data.train_dataloader(client, seed=3))
        for (inputs, labels), (own_inputs, own) in zip(loader, data.train_dataloader(client, seed=3), strict=True):
            assert torch.equal(inputs["features"], own_inputs["features"])
            assert torch.equal(labels, 2 - own if client.id in hostile else own)


@pytest.mark.parametrize("attack", [GaussianNoise(2, std=0.1), LabelFlip(2)], ids=lambda attack: type(attack).__name__)
def test_a_resumed_attack_equals_an_uninterrupted_one(tmp_path, attack):
    whole = federation(tmp_path, name="whole", rounds=4, attack=attack, **file_callbacks())
    whole.fit(PersonalBias(), Points())
    broken = federation(tmp_path, name="broken", rounds=4, attack=attack, **file_callbacks())
    broken.add_callback(StopAfter(2))
    with pytest.raises(Interrupted):
        broken.fit(PersonalBias(), Points())
    again = federation(tmp_path, name="broken", rounds=4, attack=attack, **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    assert_equal(run_tensors(again.run_state), run_tensors(whole.run_state))
