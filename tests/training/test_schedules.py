"""Learning rates over rounds, against numbers worked out by hand; and what a client's optimizer is given of them."""

from __future__ import annotations

import math

import pytest
import torch

from fedvlp.commands.cli import main
from fedvlp.training.local_training import Constant, CosineDecay, ExponentialDecay
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation


def factors(schedule, rounds):
    return [schedule.factor(round, rounds) for round in range(rounds)]


def test_exponential_decay_of_trip():
    """0.8 a round over 15 rounds: the last one trains with 0.8^14 = 4.4 % of the rate."""
    assert factors(ExponentialDecay(0.8), 4) == pytest.approx([1, 0.8, 0.64, 0.512])
    assert ExponentialDecay(0.8).factor(14, 15) == pytest.approx(0.04398, abs=1e-5)
    assert factors(ExponentialDecay(1.0), 5) == [1.0] * 5


def test_cosine_decay_after_a_constant_warmup():
    """CoOp's epochs: 1e-5 of 0.002 once, then half a cosine that starts at the full rate."""
    schedule = CosineDecay(warmup_rounds=1, warmup_factor=1e-5 / 0.002)
    expected = [0.005, 1, (1 + math.sqrt(0.5)) / 2, 0.5]
    assert factors(schedule, 4) == pytest.approx(expected)
    assert factors(CosineDecay(), 2) == pytest.approx([1, 0.5])


def test_cosine_agrees_with_pytorch():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert [0.3 * factor for factor in factors(CosineDecay(), 7)] == pytest.approx(rates)


@pytest.mark.parametrize("schedule", [Constant, CosineDecay, lambda **options: ExponentialDecay(0.5, **options)])
def test_every_schedule_warms_up_and_then_is_itself(schedule):
    plain = schedule(warmup_rounds=0)
    warm = schedule(warmup_rounds=2, warmup_factor=0.25)
    assert factors(warm, 6) == [0.25, 0.25, *factors(plain, 6)[:4]]


def test_every_group_of_a_fresh_optimizer_is_scaled(tmp_path):
    optimizers = []

    class TwoRates(Linear):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(3))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD([{"params": [self.weight]}, {"params": [self.bias], "lr": 0.125}], lr=0.5)
            optimizers.append(optimizer)
            return optimizer

        def forward(self, inputs):
            return super().forward(inputs) + self.bias

    run = federation(tmp_path, schedule=ExponentialDecay(0.5))
    run.fit(TwoRates(), Points(clients=1))
    for optimizer, factor in zip(optimizers, [1.0, 0.5, 0.25], strict=True):
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * factor, 0.125 * factor]
    assert [row["learning_rate_factor"] for row in run.run_state.history] == [1.0, 0.5, 0.25]


def test_decay_trains_as_smaller_rates_do(tmp_path):
    """Two rounds with gamma 0.5 are one round with 0.5 and then one with 0.25."""
    both = federation(tmp_path, rounds=2, schedule=ExponentialDecay(0.5)).fit(Linear(0.5), Points())
    module = Linear(0.25)
    run = federation(tmp_path, rounds=2, schedule=Constant(warmup_rounds=1, warmup_factor=2.0))
    assert torch.equal(run.fit(module, Points()).shared["weight"], both.shared["weight"])


def test_schedule_is_part_of_the_run(tmp_path):
    federation(tmp_path, name="run", schedule=ExponentialDecay(0.5)).fit(Linear(), Points())
    for schedule, expected in [
        (ExponentialDecay(0.25), "schedule.gamma: was 0.5, is 0.25"),
        (None, "training.schedule: was {'class': 'ExponentialDecay'"),
    ]:
        with pytest.raises(UserError, match=expected):
            federation(tmp_path, name="run", schedule=schedule).fit(Linear(), Points(), ckpt_path="last")
    longer = federation(tmp_path, name="run", schedule=ExponentialDecay(0.5), rounds=4)
    longer.fit(Linear(), Points(), ckpt_path="last")
    assert len(longer.run_state.history) == 4


def test_number_of_rounds_is_part_of_a_run_whose_rates_depend_on_it(tmp_path):
    federation(tmp_path, name="run", schedule=CosineDecay()).fit(Linear(), Points())
    with pytest.raises(UserError, match=r"training\.schedule\.rounds: was 3, is 4"):
        federation(tmp_path, name="run", schedule=CosineDecay(), rounds=4).fit(Linear(), Points(), ckpt_path="last")


def test_chosen_by_short_name_on_the_command_line(image_root, tmp_path, capsys):
    options = [f"--data.root={image_root}", "--model.clip.name=fedvlp-tiny"]
    options += ["--trainer.local.schedule=ExponentialDecay", "--trainer.local.schedule.gamma=0.8"]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config=promptfl", "--config=folders", *options, "--print_config"])
    assert stopped.value.code == 0
    assert "class_path: fedvlp.ExponentialDecay" in capsys.readouterr().out
