"""What each client's optimizer remembers between rounds: by client and phase, as tensors, in checkpoints."""

from __future__ import annotations

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.assertions import assert_same_run, run_tensors
from tests.helpers.interruptions import Interrupted, StopAfter
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation


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
    memory = run.run_state.optimizer_states
    moments = {"exp_avg", "exp_avg_sq", "step"}
    expected = set()
    for where in ("0/weight", "0/bias", "1/bias"):
        expected |= {f"{where}/{key}" for key in moments}
    assert memory.keys() == {0, 1}
    assert memory[0].keys() == memory[1].keys() == expected
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
    options = {"rounds": 6, "cohort_size": 2, "reset_optimizer": False, "epochs": 0.5}
    whole = federation(tmp_path, name="whole", **options)
    whole.fit(method(), Points())
    broken = federation(tmp_path, name="broken", callbacks=[StopAfter(3)], **options)
    with pytest.raises(Interrupted):
        broken.fit(method(), Points())
    again = federation(tmp_path, name="broken", **options)
    again.fit(method(), Points(), ckpt_path="last")
    assert bool(whole.run_state.optimizer_states) == (make is not plain)
    files = [run.folder / "checkpoints" / "round-00006.safetensors" for run in (whole, again)]
    assert_same_run(load_checkpoint(files[0])[0], load_checkpoint(files[1])[0])


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


def num_bytes(tensors):
    return sum(value.numel() * value.element_size() for value in tensors)


def bytes_held_by(value, known):
    """Bytes of all tensors that can be reached from a value."""
    if id(value) in known:
        return 0
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        return num_bytes([value])
    if isinstance(value, dict):
        return sum(bytes_held_by(item, known) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(bytes_held_by(item, known) for item in value)
    return bytes_held_by(vars(value), known) if type(value).__module__.startswith("fedvlp") else 0


@pytest.mark.parametrize("reset", [True, False])
def test_state_does_not_grow_with_the_rounds(tmp_path, reset):
    sizes = []
    held = []

    class Scales(L.pytorch.callbacks.Callback):
        def on_round_end(self, federation):
            sizes.append(num_bytes(run_tensors(federation.run_state).values()))
            own = [item for item in federation.callbacks if item is not self]
            assert own
            held.append(sum(bytes_held_by(vars(item), set()) for item in own))

    federation(tmp_path, rounds=6, reset_optimizer=reset, callbacks=[Scales()]).fit(PersonalBias(), Points())
    assert sizes[1] > 0
    assert sizes[1:] == [sizes[1]] * 5
    assert held[1:] == [held[1]] * 5  # what each image was taken for, in one evaluation
