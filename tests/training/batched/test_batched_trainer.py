"""Clients trained in one step equal clients trained one after another, whatever the method and whatever it does."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn

from fedvlp.clip.towers import packed_weights
from fedvlp.core.state import Client
from fedvlp.methods import (
    ADAPT,
    PLAN,
    TRIP,
    CoCoOp,
    DiPrompT,
    FedAPT,
    FedCLIP,
    FedDPT,
    FedLoRA,
    FedMaPLe,
    FedMVP,
    FedOTP,
    FedPGP,
    FedPR,
    FedPromptSRC,
    FedTPG,
    KgCoOp,
    PFedPG,
    ProGrad,
    PromptFL,
    SingleDomain,
)
from fedvlp.training.batched.batched_trainer import BatchedTrainer
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_equal, assert_near, assert_same_run, run_tensors
from tests.helpers.images import CLASSES
from tests.helpers.interruptions import Interrupted, StopAfter
from tests.helpers.toy_federation import Linear, Points, federation

DOMAINS = ["ink", "paint"]
METHODS = {
    "promptfl": lambda clip: PromptFL(CLASSES, clip, prompt_length=2),
    "single domain": lambda clip: SingleDomain(CLASSES, clip, prompt_length=2),
    "trip": lambda clip: TRIP(CLASSES, clip, prompt_length=2),
    "trip, learned router": lambda clip: TRIP(CLASSES, clip, prompt_length=2, routing="learned_token"),
    "cocoop": lambda clip: CoCoOp(CLASSES, clip),
    "kgcoop": lambda clip: KgCoOp(CLASSES, clip),
    "prograd": lambda clip: ProGrad(CLASSES, clip, prompt_length=2),
    "fed_clip": lambda clip: FedCLIP(CLASSES, clip),
    "fed_apt": lambda clip: FedAPT(CLASSES, DOMAINS, clip, prompt_length=2),
    "plan": lambda clip: PLAN(CLASSES, 6, clip, prompt_length=2, templates=1),
    "fed_maple": lambda clip: FedMaPLe(CLASSES, clip),
    "fed_prompt_src": lambda clip: FedPromptSRC(CLASSES, clip, templates=1),
    "fed_lora": lambda clip: FedLoRA(CLASSES, clip),
    "fed_tpg": lambda clip: FedTPG(CLASSES, clip, prompt_length=2),
    "fed_pgp": lambda clip: FedPGP(CLASSES, clip, prompt_length=2, rank=1),
    "fed_pr": lambda clip: FedPR(CLASSES, clip, prompt_length=2, depth=2),
    "fed_mvp": lambda clip: FedMVP(CLASSES, clip, templates=1),
    "pfed_pg": lambda clip: PFedPG(CLASSES, 6, clip, prompt_length=2),
    "fed_otp": lambda clip: FedOTP(CLASSES, clip, prompt_length=2, iterations=9),
    "fed_dpt": lambda clip: FedDPT(CLASSES, DOMAINS, clip, prompt_length=2),
    "adapt": lambda clip: ADAPT(CLASSES, DOMAINS, clip, prompt_length=2),
}


class Several(Points):
    """Six clients in two domains; four have eight points, two have twelve."""

    def __init__(self):
        super().__init__()
        self.clients = [Client(i, i % 2, 12 if i > 3 else 8, f"client{i}") for i in range(6)]


class Images(Several):
    """Random images in place of points."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def points(self, number, count):
        generator = torch.Generator().manual_seed(number)
        size = self.module.clip.image_size
        images = torch.rand(count, 3, size, size, generator=generator)
        return images, torch.randint(3, (count,), generator=generator)

    def train_dataloader(self, client=None, seed=None):
        batches = super().train_dataloader(client, seed)
        return [(self.module.prepare(inputs["features"]), labels) for inputs, labels in batches]

    def evaluation_splits(self):
        return []


class Trained(NamedTuple):
    """All tensors after a run, what each client logged last, and how clients were grouped."""

    tensors: dict[str, torch.Tensor]
    metrics: dict[str, float]
    groups: list[list[int]]


def trained(tmp_path, module, data, clients_per_step, **options):
    options = {"rounds": 2, "default_callbacks": False, **options}
    run = federation(tmp_path, clients_per_step=clients_per_step, **options)
    groups = []
    together = BatchedTrainer.train_together

    def watched(self, order, group, inventory):
        result = together(self, order, group, inventory)
        groups.append([client.id for client in group])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchedTrainer, "train_together", watched)
        run.fit(module, data)
    metrics = {}
    for row in run.run_state.history:
        metrics |= {name: value for name, value in row.items() if name.startswith("client/")}
    return Trained(run_tensors(run.run_state), metrics, groups)


@pytest.mark.parametrize("method", METHODS)
def test_equals_one_after_another(method, clip, tmp_path):
    """Personal tensors, moving copies, two phases: no method knows of it."""
    runs = []
    for clients_per_step in (1, 4):
        torch.manual_seed(0)
        module = METHODS[method](clip)
        module.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        runs.append(trained(tmp_path, module, Images(module), clients_per_step, rounds=1))
    alone, together = runs
    assert_near(together.tensors, alone.tensors)
    assert together.metrics == pytest.approx(alone.metrics, rel=1e-5)
    assert not alone.groups
    # Steps of these depend on the client's domain; of the larger clients each domain has one.
    expected = [[0, 2], [1, 3]] if method in ("fed_apt", "fed_dpt", "adapt") else [[0, 1, 2, 3], [4, 5]]
    assert together.groups == expected * len(module.configure_phases())


@pytest.mark.parametrize("method", ["promptfl", "adapt"])
def test_equals_one_after_another_with_packed_weights(method, clip, tmp_path, monkeypatch):
    """The towers' products are then of another kind."""
    monkeypatch.setattr(packed_weights, "_LEAST_ELEMENTS", 0)
    test_equals_one_after_another(method, clip, tmp_path)
    assert bool(clip.text.blocks.num_packed) == packed_weights.has_kernel()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_kept_optimizers_and_half_epochs(optimizer, tmp_path):
    """Equal where some clients are newcomers to what an optimizer remembers, and where steps differ."""
    options = {"rounds": 4, "reset_optimizer": False, "local_epochs": 1.5, "cohort_size": 4}
    module = Linear()
    module.make_optimizer = lambda parameters: optimizer(parameters, lr=0.1, weight_decay=0.1)
    runs = []
    for clients_per_step in (1, 3):
        nn.init.zeros_(module.weight)
        runs.append(trained(tmp_path, module, Several(), clients_per_step, **options))
    alone, together = runs
    assert_near(together.tensors, alone.tensors)
    assert together.metrics == pytest.approx(alone.metrics, rel=1e-5)
    assert together.groups


def test_resumed_run_equals_an_unbroken_one(tmp_path):
    options = {"rounds": 4, "clients_per_step": 3, "reset_optimizer": False}
    whole = federation(tmp_path, name="whole", **options)
    whole.fit(Linear(), Several())
    broken = federation(tmp_path, name="broken", **options)
    broken.add_callback(StopAfter(2))
    with pytest.raises(Interrupted):
        broken.fit(Linear(), Several())
    again = federation(tmp_path, name="broken", **options)
    again.fit(Linear(), Several(), ckpt_path="last")
    assert_same_run(again.run_state, whole.run_state)


def test_callbacks_are_called_as_ever(tmp_path):
    def hooks(clients_per_step):
        seen = []
        run = federation(tmp_path, rounds=1, local_epochs=2, default_callbacks=False, clients_per_step=clients_per_step)
        run._call = lambda hook, client=None, steps=None, **_: seen.append((hook, client and client.id, steps))
        run.fit(Linear(), Several())
        return seen

    assert hooks(3) == hooks(1)


class Odd(Linear):
    """A linear classifier that does something in its step."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.seen = None

    def start_client(self, context):
        super().start_client(context)
        self.count.zero_()
        self.seen = None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.what == "draws":
            loss = loss + 0.1 * torch.rand(()) * self.weight.square().sum()
        elif self.what == "goes by values" and bool(loss > 0.5):
            loss = 2 * loss
        elif self.what == "counts":
            self.count += 1
            loss = loss / self.count
        elif self.what == "remembers":
            loss = loss if self.seen is None else loss + (self.seen - self.weight).square().sum()
            self.seen = self.weight.detach().clone()
        elif self.what == "asks who":
            loss = loss * (1 + self.context.client.id)
        return loss


@pytest.mark.parametrize("what", ["draws", "goes by values", "counts", "remembers", "asks who"])
def test_what_cannot_be_batched_is_trained_one_after_another(what, tmp_path, capsys):
    alone = trained(tmp_path, Odd(what), Several(), clients_per_step=1)
    together = trained(tmp_path, Odd(what), Several(), clients_per_step=3)
    assert_equal(together.tensors, alone.tensors)
    assert together.metrics == alone.metrics
    assert not together.groups
    assert capsys.readouterr().out.count("has steps of one client alone") == 1


def test_other_optimizers_are_not_shared(tmp_path):
    class Signs(torch.optim.SGD):
        pass

    module = Linear()
    module.make_optimizer = lambda parameters: Signs(parameters, lr=0.1)
    assert not trained(tmp_path, module, Several(), 3).groups


def test_mistakes_are_raised(tmp_path):
    class Lossless(Linear):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(UserError, match="must return the loss"):
        trained(tmp_path, Lossless(), Several(), 3)


def test_refuses_scaled_gradients(tmp_path):
    run = federation(tmp_path, clients_per_step=3)
    run.fabric.strategy.precision.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(UserError, match="bf16-mixed"):
        run.fit(Linear(), Several())


def test_refuses_no_client(tmp_path):
    with pytest.raises(UserError, match="clients_per_step"):
        federation(tmp_path, clients_per_step=0)


def test_diprompt_goes_by_values_and_is_exact(clip, tmp_path):
    runs = []
    for clients_per_step in (1, 4):
        torch.manual_seed(0)
        module = DiPrompT(CLASSES, DOMAINS, clip, prompt_length=4)
        runs.append(trained(tmp_path, module, Images(module), clients_per_step, rounds=1))
    assert_near(runs[1].tensors, runs[0].tensors)
