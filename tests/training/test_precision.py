"""Mixed precision affects only the towers: learned tensors, routing and averages stay in float32."""

import lightning as L
import pytest
import torch
from lightning.fabric.plugins import MixedPrecision

from fedvlp import ADAPT, PLAN, TRIP, PromptFL
from fedvlp.core.phases import RoundContext
from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.routing import expert_shares, make_keys
from tests.helpers.assertions import run_tensors
from tests.helpers.images import CLASSES
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, make_callback

METHODS = {
    "promptfl": lambda clip: PromptFL(CLASSES, clip, prompt_length=2, kl_weight=1.0, templates=1),
    "trip": lambda clip: TRIP(CLASSES, clip, prompt_length=2, templates=1),
    "plan": lambda clip: PLAN(CLASSES, 3, clip, prompt_length=2, templates=1),
    "adapt": lambda clip: ADAPT(CLASSES, ["ink", "paint"], clip, prompt_length=2),
}


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("method", METHODS)
def test_losses_gradients_and_optimizers_are_single_precision(method, clip):
    torch.manual_seed(0)
    module = METHODS[method](clip)
    module.start_client(RoundContext(0, module.configure_phases()[0], Points(clients=1).clients[0]))
    batch = (torch.rand(4, 3, clip.image_size, clip.image_size), torch.tensor([0, 1, 2, 0]))
    exact = module.training_step(batch, 0)
    with autocast():
        loss = module.training_step(batch, 0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    assert loss.item() != exact.item()
    optimizer = torch.optim.AdamW(list(module.trainable_by_name().values()))
    loss.backward()
    optimizer.step()
    assert {parameter.dtype for parameter in module.trainable_by_name().values()} == {torch.float32}
    for state in optimizer.state.values():
        assert {value.dtype for value in state.values()} == {torch.float32}


def test_mixed_precision_learns_like_single_precision(tmp_path):
    losses = []
    for precision in ("32-true", "bf16-mixed"):
        run = federation(tmp_path, precision=precision, reset_optimizer=False)
        run.fit(PersonalBias(), Points())
        assert {value.dtype for value in run_tensors(run.run_state).values()} == {torch.float32}
        losses.append([row[name] for row in run.run_state.history for name in row if name.endswith("/loss")])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_routing_does_not_depend_on_autocast(dtype):
    """For the same tokens, clusters and experts are the same as in full precision."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(32, 20, 16, generator=generator).to(dtype)
    keys = make_keys("orthogonal", 4, 16, seed=0)
    start = torch.arange(4).repeat(32, 1)
    for capacity in (1.0, 2.0, None):
        capacities = cluster_capacities(20, 4, capacity)
        exact = expert_shares(capacity_kmeans(tokens, start, capacities), keys)
        with autocast():
            assert torch.equal(expert_shares(capacity_kmeans(tokens, start, capacities), keys), exact)


def gradient_scales(tmp_path, spoil):
    """List the scale of gradients after each step of a run in 16-mixed."""
    seen = []
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    run = federation(tmp_path, rounds=1, steps=2)
    run.fabric = L.Fabric(accelerator="cpu", plugins=MixedPrecision("16-mixed", "cpu", scaler))
    run.add_callback(make_callback(on_train_batch_end=lambda *_: seen.append(scaler.get_scale())))
    run.fit(Linear(), Points(clients=3, spoil=spoil))
    return seen


def test_each_client_starts_with_the_same_gradient_scale(tmp_path):
    """It does not depend on earlier clients and their overflows."""
    assert gradient_scales(tmp_path, spoil=False) == [1024.0, 2048.0] * 3
    assert gradient_scales(tmp_path, spoil=True) == [512.0, 256.0] + [1024.0, 2048.0] * 2
