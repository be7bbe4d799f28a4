"""SWAD: the paper's algorithm on recorded losses, and the mean over all steps' weights in a run."""

import random

import numpy as np
import pytest
import torch

from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.methods.swad import LossValley
from fedvlp.training.evaluation import validation_loss
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import make_callback

POOL = Client(0, -1, 10, "pool", is_pool=True)


def run_algorithm_1(losses, start_patience, end_patience, tolerance):
    """Run Algorithm 1 line by line, and return the first and last evaluation (from 0) in the average.

    Before a start is found, the paper averages from 0, and fedvlp from the lowest loss so far.
    """
    start, end, threshold = losses.index(min(losses)), len(losses) - 1, None
    for i in range(len(losses)):
        if threshold is None:
            latest = losses[max(0, i - start_patience + 1) : i + 1]
            if len(latest) == start_patience and latest[0] == min(latest):
                start = i - start_patience + 1
                threshold = tolerance / start_patience * sum(latest)
        elif i + 1 >= end_patience and threshold < min(losses[i - end_patience + 1 : i + 1]):
            end = i - end_patience
            break
    return start, end


def deployed_weights(strategy, losses, weights):
    """Aggregate rounds with these losses and mean weights, and list the deployed weight after each round."""
    server = ServerState.start({"visual.w": torch.zeros(1)})
    found = []
    for round, (loss, weight) in enumerate(zip(losses, weights, strict=True)):
        last = torch.tensor([100.0 + round])
        update = ClientUpdate(POOL, {"visual.w": last, "mean.w": torch.tensor([weight])}, 10)
        server = strategy.after_validation(strategy.aggregate(server, [update]), loss)
        assert torch.equal(server.shared["visual.w"], last)
        found.append(server.deployed["visual.w"].item())
    return found


def curve(seed):
    """Draw a noisy valley of losses that falls, stays and rises, sometimes twice."""
    generator = random.Random(seed)
    low = generator.randint(2, 12)
    losses = [1 + abs(i - low) ** 1.5 / 9 * generator.uniform(0.2, 1.5) for i in range(26)]
    return [round(loss * generator.choice([1, 1, 1, 1.6]), generator.choice([1, 6])) for loss in losses]


@pytest.mark.parametrize("patience", [(3, 6), (1, 1), (2, 2), (4, 5)])
def test_it_equals_the_papers_algorithm_on_any_curve(patience):
    """Every round is tested as the last one. Some valleys start immediately, and some never end."""
    ends = set()
    for seed in range(40):
        losses = curve(seed)
        weights = [float(value) for value in np.random.default_rng(seed).normal(size=26)]
        found = deployed_weights(LossValley(*patience, 1.3), losses, weights)
        for rounds in range(1, 27):
            first, last = run_algorithm_1(losses[:rounds], *patience, 1.3)
            assert found[rounds - 1] == pytest.approx(np.mean(weights[first : last + 1]), abs=1e-5)
            ends.add((first > 0, last < rounds - 1))
    assert len(ends) == (2 if patience[0] == 1 else 4)


def test_a_lower_loss_restarts_the_average_and_a_single_high_loss_does_not_end_it():
    """Computed by hand with N_s = 2, N_e = 2, r = 1.5."""
    found = deployed_weights(
        LossValley(2, 2, 1.5), [4.0, 2.0, 2.5, 9.0, 3.0, 9.0, 9.0, 1.0], [8.0, 2.0, 4.0, 6.0, 8.0, 9.0, 9.0, 9.0]
    )
    assert found == pytest.approx([8, 2, 3, 4, 5, 29 / 5, 5, 5])


def test_a_run_deploys_the_mean_over_all_steps_of_the_interval(build):
    options = ["--trainer.baselines=[]", "--trainer.runtime.default_callbacks=false"]
    run = build("swad", "--trainer.rounds=4", "--model.optimizer.lr=1e-3", *options)
    steps = []

    def note(trainer, module, *_):
        steps[-1].append({name: value.detach().double().clone() for name, value in module.visual.named_parameters()})

    run.trainer.add_callback(make_callback(on_round_start=lambda *_: steps.append([]), on_train_batch_end=note))
    server = run.trainer.fit(run.model, run.datamodule)
    losses = [row["validation_loss"] for row in run.trainer.run_state.history]
    assert [len(round_steps) for round_steps in steps] == [2, 2, 2, 2]
    first, last = run_algorithm_1(losses, 3, 6, 1.3)
    averaged = [weights for round_steps in steps[first : last + 1] for weights in round_steps]
    for name in averaged[0]:
        mean = torch.stack([weights[name] for weights in averaged]).mean(0)
        torch.testing.assert_close(server.deployed[f"visual.{name}"].double(), mean, rtol=1e-5, atol=1e-6)
        newest = steps[-1][-1][name]
        torch.testing.assert_close(server.shared[f"visual.{name}"].double(), newest, rtol=0, atol=0)
    loss = validation_loss(run.model, run.datamodule, run.trainer.fabric, server.shared)
    assert loss == losses[-1]
    expected = []
    for split in run.datamodule.evaluation_splits():
        if split.role == "validation":
            own = [-run.model(x).log_softmax(-1)[i, y].item() for x, ys in split.loader for i, y in enumerate(ys)]
            expected.append(sum(own) / len(own))
    assert loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_several_clients_are_rejected():
    with pytest.raises(UserError, match="partition Pooled"):
        LossValley(3, 6, 1.3).check([Client(0, 0, 3), Client(1, 1, 3)])
