"""Fractions of an epoch, optimizers that remember, and what a run keeps of both."""

from __future__ import annotations

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from fedvlp.core.module import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.training.local_training import LocalTraining, num_steps
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.toy_federation import Linear, Points, federation

BATCHES = 6


def loader_of(number):
    """Six batches, named by their shuffle's number and their place in it."""
    return [(number, place) for place in range(BATCHES)]


def rounds_of(local, rounds):
    return [list(local.batches(loader_of, round)[0]) for round in range(rounds)]


def test_half_epochs_go_on_through_the_same_shuffle():
    first, second, third = rounds_of(LocalTraining(epochs=0.5), 3)
    assert first == [(0, 0), (0, 1), (0, 2)]
    assert second == [(0, 3), (0, 4), (0, 5)]
    assert third == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("epochs", [0.01, 0.25, 0.4, 0.7, 1.5, 2.3])
def test_fractions_leave_out_and_repeat_nothing(epochs):
    """All rounds together are an unbroken row of passes."""
    seen = [batch for batches in rounds_of(LocalTraining(epochs=epochs), 20) for batch in batches]
    assert seen == [divmod(position, BATCHES) for position in range(len(seen))]
    assert len(seen) == 20 * num_steps(BATCHES, epochs, None)


def test_whole_epochs_and_steps_shuffle_anew_in_each_round():
    assert rounds_of(LocalTraining(epochs=2), 2) == [2 * loader_of(0), 2 * loader_of(1)]
    assert rounds_of(LocalTraining(epochs=2.0), 2) == rounds_of(LocalTraining(epochs=2), 2)
    assert rounds_of(LocalTraining(steps=4), 2) == [loader_of(0)[:4], loader_of(1)[:4]]
    assert rounds_of(LocalTraining(epochs=0.5, steps=7), 1) == [[*loader_of(0), (0, 0)]]


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
    halves = batches_seen(tmp_path, local_epochs=0.5, rounds=2)
    whole = batches_seen(tmp_path, rounds=1)
    for client in (0, 2):  # 2 and 4 batches; client 1 has 3, so its second round begins another pass
        assert halves[0, client] + halves[1, client] == whole[0, client]
    assert (halves[0, 1] + halves[1, 1])[:3] == whole[0, 1]


def test_place_in_a_pass_does_not_depend_on_who_took_part(tmp_path):
    alone = batches_seen(tmp_path, local_epochs=0.5, rounds=6, cohort_size=1)
    together = batches_seen(tmp_path, local_epochs=0.5, rounds=6)
    assert len(alone) == 6
    assert all(together[where] == batches for where, batches in alone.items())


class Remembering(Linear):
    """Two parameters in two phases with AdamW: what an optimizer remembers is per phase."""

    def __init__(self, make=lambda parameters: torch.optim.AdamW(parameters, lr=0.1)):
        super().__init__()
        self.make_optimizer = make
        self.bias = torch.nn.Parameter(torch.zeros(3))

    def configure_phases(self):
        names = ("weight", "bias")
        return [
            Phase("both", train=names, upload=names, strategy=FedAvg()),
            Phase("bias", train=("bias",), upload=("bias",), strategy=FedAvg()),
        ]

    def forward(self, inputs):
        return super().forward(inputs) + self.bias


def test_kept_optimizer_of_one_client_is_central_training(tmp_path):
    """With one client and one phase, rounds with a kept AdamW are one long central run; a reset one differs."""

    class OnePhase(Linear):
        def __init__(self):
            super().__init__()
            self.make_optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.1)

    data = Points(clients=1)
    kept = federation(tmp_path, rounds=3, reset_optimizer=False).fit(OnePhase(), data)
    weight = torch.zeros(3, 4, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for round in range(3):
        for inputs, labels in data.train_dataloader(data.clients[0], seed=derive_seed(0, round, 0, 0)):
            optimizer.zero_grad()
            F.cross_entropy(inputs["features"] @ weight.mT, labels).backward()
            optimizer.step()
    assert torch.equal(kept.shared["weight"], weight.detach())
    reset = federation(tmp_path, rounds=3).fit(OnePhase(), data)
    assert not torch.equal(reset.shared["weight"], kept.shared["weight"])


def test_memory_is_kept_by_client_and_phase_and_is_not_sent(tmp_path):
    run = federation(tmp_path, rounds=2, reset_optimizer=False)
    run.fit(Remembering(), Points(clients=2))
    memory = run.run_state.optimizers
    moments = {"exp_avg", "exp_avg_sq", "step"}
    expected = {f"0/{name}/{key}" for name in ("weight", "bias") for key in moments}
    assert memory.keys() == {0, 1}
    assert all(state.keys() == expected | {f"1/bias/{key}" for key in moments} for state in memory.values())
    assert [memory[client]["0/weight/step"].item() for client in (0, 1)] == [2 * 2, 2 * 3]  # rounds x batches
    assert not torch.equal(memory[0]["0/weight/exp_avg"], memory[1]["0/weight/exp_avg"])
    row = run.run_state.history[-1]
    assert row["upload_parameters"] == row["download_parameters"] - 12 == 15 + 3
    assert federation(tmp_path, rounds=2).fit(Remembering(), Points(clients=2)).memory == {}


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("make", [None, momentum, plain], ids=["AdamW", "momentum", "plain"])
def test_memory_survives_an_interruption_bit_for_bit(tmp_path, make):
    """Partial participation, so that clients come back after rounds in which they were absent."""
    method = (lambda: Remembering(make)) if make else Remembering
    options = {"rounds": 6, "cohort_size": 2, "reset_optimizer": False, "local_epochs": 0.5}
    whole = federation(tmp_path, name="whole", **options)
    whole.fit(method(), Points())
    broken = federation(tmp_path, name="broken", callbacks=[StopAfter(3)], **options)
    with pytest.raises(Stopped):
        broken.fit(method(), Points())
    again = federation(tmp_path, name="broken", **options)
    again.fit(method(), Points(), ckpt_path="last")
    files = [run.folder / "checkpoints" / "round-00006.safetensors" for run in (whole, again)]
    states = [load_checkpoint(path)[0] for path in files]
    assert states[0].optimizers.keys() == states[1].optimizers.keys()
    for client, state in states[0].optimizers.items():
        assert state.keys() == states[1].optimizers[client].keys()
        assert all(torch.equal(value, states[1].optimizers[client][name]) for name, value in state.items())
    assert bool(states[0].optimizers) == (make is not plain)
    for name, value in states[0].server.shared.items():
        assert torch.equal(value, states[1].server.shared[name])


class Stopped(Exception):
    pass


class StopAfter(L.pytorch.callbacks.Callback):
    """Stops a run at the beginning of the round after this many, when the checkpoint was written."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round_start(self, federation):
        if federation.run_state.server.round == self.rounds:
            raise Stopped


def test_optimizer_and_fractions_are_part_of_the_run(tmp_path):
    federation(tmp_path, name="run").fit(Linear(), Points())
    for change, expected in [
        ({"reset_optimizer": False}, "training.reset_optimizer: was True, is False"),
        ({"local_epochs": 0.5}, "training.local_epochs: was 1, is 0.5"),
    ]:
        with pytest.raises(UserError, match=expected):
            federation(tmp_path, name="run", **change).fit(Linear(), Points(), ckpt_path="last")


def test_optimizer_that_remembers_more_than_tensors_is_refused(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["calls"] = 1

    with pytest.raises(UserError, match="Counting remembers 'calls' as int"):
        federation(tmp_path, reset_optimizer=False).fit(
            Remembering(lambda parameters: Counting(parameters, lr=0.1)), Points()
        )


@pytest.mark.parametrize("epochs", [0, -0.5, float("inf"), float("nan")])
def test_epochs_must_be_above_zero(tmp_path, epochs):
    with pytest.raises(UserError, match="local_epochs above 0"):
        federation(tmp_path, local_epochs=epochs)


def size(state):
    return sum(value.numel() * value.element_size() for value in state.values())


def total_size(progress):
    server = progress.server
    clients = [*progress.personal.values(), *progress.optimizers.values()]
    return sum(map(size, [server.shared, server.deployed, server.memory, *clients]))


def tensors_in(value, known):
    """Bytes of all tensors that can be reached from a value."""
    if id(value) in known:
        return 0
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(tensors_in(item, known) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(tensors_in(item, known) for item in value)
    return tensors_in(vars(value), known) if type(value).__module__.startswith("fedvlp") else 0


@pytest.mark.parametrize("reset", [True, False])
def test_state_does_not_grow_with_the_rounds(tmp_path, reset):
    sizes, held = [], []

    class Scales(L.pytorch.callbacks.Callback):
        def on_round_end(self, federation):
            sizes.append(total_size(federation.run_state))
            own = [item for item in federation.fabric._callbacks if item is not self]
            assert own
            held.append(sum(tensors_in(vars(item), set()) for item in own))

    class Personal(Remembering):
        personal = ("bias",)

        def configure_phases(self):
            return [Phase("both", train=("weight", "bias"), upload=("weight",), strategy=FedAvg())]

    federation(tmp_path, rounds=6, reset_optimizer=reset, callbacks=[Scales()]).fit(Personal(), Points())
    assert sizes[1] > 0
    assert sizes[1:] == [sizes[1]] * 5
    assert held == [0] * 6
