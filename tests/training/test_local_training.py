"""Local training of a client: its batches, learning rates and optimizer state."""

from itertools import chain

import pytest
import torch
import torch.nn.functional as F

from fedvlp.callbacks import Communication
from fedvlp.core.phases import Phase
from fedvlp.core.strategies import FedAvg
from fedvlp.training.add_ons.scaffold import Scaffold
from fedvlp.training.local_training import Constant, CosineDecay, ExponentialDecay, LocalTraining, num_steps
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.assertions import run_tensors
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, make_callback

BATCHES = 6


def make_loader(number):
    """List six batches, each named by the number of its shuffle and its index."""
    return [(number, index) for index in range(BATCHES)]


def list_batches(local, rounds):
    """List the batches of each round."""
    return [list(local.batches(make_loader, round)[0]) for round in range(rounds)]


@pytest.mark.parametrize("epochs", [0.01, 0.25, 0.4, 0.7, 1.5, 2.3])
def test_fractional_epochs_skip_and_repeat_nothing(epochs):
    """All rounds together form an uninterrupted sequence of passes."""
    seen = list(chain(*list_batches(LocalTraining(epochs=epochs), 20)))
    assert seen == [divmod(position, BATCHES) for position in range(len(seen))]
    assert len(seen) == 20 * num_steps(BATCHES, epochs, None)


def test_whole_epochs_and_steps_reshuffle_in_each_round():
    assert list_batches(LocalTraining(epochs=2), 2) == [2 * make_loader(0), 2 * make_loader(1)]
    assert list_batches(LocalTraining(epochs=2.0), 2) == list_batches(LocalTraining(epochs=2), 2)
    assert list_batches(LocalTraining(steps=4), 2) == [make_loader(0)[:4], make_loader(1)[:4]]
    assert list_batches(LocalTraining(steps=7), 1) == [[*make_loader(0), (0, 0)]]


def test_steps_and_epochs_are_mutually_exclusive(tmp_path):
    with pytest.raises(UserError, match=r"local.steps or local.epochs, got both \(3 and 0.5\)"):
        federation(tmp_path, epochs=0.5, steps=3)


def factors(schedule, rounds, lr=0.002):
    return [schedule.factor(round, rounds, lr) for round in range(rounds)]


def dassl_rates(lr, epochs, warmup_epochs, warmup_lr):
    """Compute the rates of ConstantWarmupScheduler before CosineAnnealingLR, each stepped after an epoch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    rates = []
    for epoch in range(epochs):
        rates.append(warmup_lr if epoch < warmup_epochs else cosine.get_last_lr()[0])
        optimizer.step()
        # Dassl counts epochs from the end of the warm-up, because WARMUP_RECOUNT is true.
        if epoch >= warmup_epochs:
            cosine.step()
    return rates


@pytest.mark.parametrize(("lr", "epochs", "warmup"), [(0.002, 50, 1), (0.0035, 5, 1), (0.3, 7, 0), (0.04, 4, 2)])
def test_cosine_agrees_with_dassl(lr, epochs, warmup):
    schedule = CosineDecay(warmup_rounds=warmup, warmup_lr=1e-5)
    expected = dassl_rates(lr, epochs, warmup, warmup_lr=1e-5)
    assert [lr * factor for factor in factors(schedule, epochs, lr)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [Constant, CosineDecay, lambda **options: ExponentialDecay(0.5, **options)])
def test_every_schedule_follows_its_warmup(schedule):
    plain = schedule(warmup_rounds=0)
    warm = schedule(warmup_rounds=2, warmup_lr=0.0005)
    assert factors(warm, 6) == [0.25, 0.25, *factors(plain, 6)[:4]]


def test_a_warmup_needs_to_know_the_learning_rate(tmp_path):
    class OwnOptimizer(Linear):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    method = OwnOptimizer()
    method.make_optimizer = None
    with pytest.raises(UserError, match="needs a method with an optimizer option"):
        federation(tmp_path, schedule=Constant()).fit(method, Points())
    federation(tmp_path, schedule=CosineDecay()).fit(method, Points())


def test_an_optimizer_in_a_list_is_rejected_in_favour_of_local_schedule(tmp_path):
    class Listed(Linear):
        def configure_optimizers(self):
            return [torch.optim.SGD([self.weight], lr=0.5)]

    with pytest.raises(UserError, match=r"Listed.configure_optimizers must return one .* got a list.*local.schedule"):
        federation(tmp_path).fit(Listed(), Points())


def test_every_group_is_scaled_unless_scheduled_is_false(tmp_path):
    optimizers = []

    class TwoRates(Linear):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(3))
            self.scale = torch.nn.Parameter(torch.ones(()))

        def configure_optimizers(self):
            bias = {"params": [self.bias], "lr": 0.125}
            scale = {"params": [self.scale], "lr": 0.75, "scheduled": False}
            optimizer = torch.optim.SGD([{"params": [self.weight]}, bias, scale], lr=0.5)
            optimizers.append(optimizer)
            return optimizer

        def forward(self, inputs):
            return self.scale * super().forward(inputs) + self.bias

    run = federation(tmp_path, schedule=ExponentialDecay(0.5))
    run.fit(TwoRates(), Points(clients=1))
    for optimizer, factor in zip(optimizers, [1.0, 0.5, 0.25], strict=True):
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * factor, 0.125 * factor, 0.75]
    assert [row["learning_rate_factor"] for row in run.run_state.history] == [1.0, 0.5, 0.25]


NORM = 0.125


def test_local_steps_use_clipped_gradients(tmp_path):
    data = Points(clients=1)
    run = federation(tmp_path, rounds=1, gradient_clip_val=NORM)
    after = run.fit(Linear(), data)
    weight = torch.zeros(3, 4, requires_grad=True)
    for inputs, labels in data.train_dataloader(data.clients[0], seed=derive_seed(0, 0, 0, 0)):
        (gradient,) = torch.autograd.grad(F.cross_entropy(inputs["features"] @ weight.mT, labels), weight)
        assert gradient.norm() > 1.5 * NORM
        weight = (weight - 0.5 * gradient * NORM / gradient.norm()).detach().requires_grad_()
    torch.testing.assert_close(after.shared["weight"], weight, atol=1e-6, rtol=1e-5)
    assert run.description["training"]["local"]["gradient_clip_val"] == NORM


def test_non_finite_gradients_are_rejected_with_clipping(tmp_path):
    run = federation(tmp_path, rounds=1, gradient_clip_val=NORM)
    run.fit(Linear(), Points(spoil=True))
    assert run.run_state.history[0]["clients/rejected"] == 1


def test_add_ons_that_need_unchanged_gradients_reject_clipping(tmp_path):
    with pytest.raises(UserError, match=r"Scaffold needs gradients unchanged. Remove local.gradient_clip_val"):
        federation(tmp_path, gradient_clip_val=NORM, add_ons=Scaffold())


class Remembering(Linear):
    """Two parameters in two phases, with a separate state of AdamW per phase."""

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


def test_one_client_with_a_kept_optimizer_equals_central_training(tmp_path):
    """With one client, one phase and a kept AdamW, rounds form one long central run. A reset AdamW differs."""

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


def test_optimizer_state_is_kept_per_client_and_phase_and_not_uploaded(tmp_path):
    run = federation(tmp_path, rounds=2, reset_optimizer=False, callbacks=Communication())
    run.fit(Remembering(), Points(clients=2))
    memory = run.run_state.optimizer_states
    moments = {"exp_avg", "exp_avg_sq", "step"}
    expected = set()
    for prefix in ("0/weight", "0/bias", "1/bias"):
        expected |= {f"{prefix}/{key}" for key in moments}
    assert memory.keys() == {0, 1}
    assert memory[0].keys() == memory[1].keys() == expected
    assert [memory[client]["0/weight/step"].item() for client in (0, 1)] == [2 * 2, 2 * 3]  # rounds x batches
    assert not torch.equal(memory[0]["0/weight/exp_avg"], memory[1]["0/weight/exp_avg"])
    row = run.run_state.history[-1]
    assert row["upload_parameters"] == row["download_parameters"] - 12 == 15 + 3
    assert federation(tmp_path, rounds=2).fit(Remembering(), Points(clients=2)).memory == {}


def test_optimizer_state_other_than_tensors_is_rejected(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["calls"] = 1

    with pytest.raises(UserError, match="Counting stores 'calls' as int"):
        federation(tmp_path, reset_optimizer=False).fit(
            Remembering(lambda parameters: Counting(parameters, lr=0.1)), Points()
        )


def count_bytes(value, known):
    """Count the bytes of all tensors reachable from a value."""
    if id(value) in known:
        return 0
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(count_bytes(item, known) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(count_bytes(item, known) for item in value)
    return count_bytes(vars(value), known) if type(value).__module__.startswith("fedvlp") else 0


def test_state_does_not_grow_with_the_rounds(tmp_path):
    sizes = []
    held = []

    def measure(federation, row):
        sizes.append(count_bytes(run_tensors(federation.run_state), set()))
        assert len(federation.callbacks) > 1
        held.append(sum(count_bytes(vars(item), set()) for item in federation.callbacks))

    options = {"callbacks": make_callback(on_round_end=measure), "default_callbacks": True}
    federation(tmp_path, rounds=4, reset_optimizer=False, **options).fit(PersonalBias(), Points())
    assert sizes[1] > 0
    assert sizes[1:] == [sizes[1]] * 3
    assert held[1:] == [held[1]] * 3  # predictions of one evaluation


def test_clients_that_share_a_reset_optimizer_train_as_with_a_fresh_one(tmp_path):
    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.1)

    class Fresh(Linear):
        def configure_optimizers(self):
            return adam([self.weight])

    plain = Linear()
    plain.make_optimizer = adam
    runs = [federation(tmp_path, rounds=2, schedule=ExponentialDecay(0.5)) for _ in range(2)]
    shared = [run.fit(module, Points()).shared["weight"] for run, module in zip(runs, (plain, Fresh()), strict=True)]
    assert torch.equal(*shared)
