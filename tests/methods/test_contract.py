"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there."""

from __future__ import annotations

import json

import lightning
import pytest
import torch

from fedvlp.checkpoint import load_deployed
from fedvlp.evaluation import evaluate
from fedvlp.module import check_phases
from fedvlp.state import covers, numel
from tests.conftest import METHODS

each_method = pytest.mark.parametrize("method", METHODS)


def everything(federation):
    """All tensors of a federation, by name."""
    server, personal = federation.progress.server, federation.progress.personal
    tensors = {f"shared/{k}": v for k, v in server.shared.items()} | {
        f"deployed/{k}": v for k, v in server.deployed.items()
    }
    return tensors | {f"{client}/{k}": v for client, state in personal.items() for k, v in state.items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def fit(run, **options):
    run.trainer.fit(run.model, run.datamodule, **options)
    return everything(run.trainer)


@each_method
def test_trains_its_tensors_and_nothing_of_clip(build, method):
    run = build(method)
    before, fingerprint = {k: v.clone() for k, v in run.model.state_dict().items()}, run.model.clip.fingerprint()
    after = fit(run)
    run.model.clip._fingerprint = None
    assert run.model.clip.fingerprint() == fingerprint
    assert not any(name.startswith("clip") for name in run.model.state_dict())
    if check_phases(run.model):
        assert after
        trained = [name for phase in run.model.configure_phases() for name in phase.train]
        assert {name.split("/")[-1] for name in after} >= set(trained)
        for name, value in after.items():
            assert not torch.equal(value, before[name.split("/")[-1]]), f"{name} did not move"
    else:
        assert not after


@each_method
def test_resumed_run_equals_an_unbroken_one(build, method, tmp_path):
    whole = fit(build(method, "--trainer.rounds=4", "--trainer.name=whole"))
    fit(build(method, "--trainer.rounds=2", "--trainer.name=broken"))
    again = build(method, "--trainer.rounds=4", "--trainer.name=broken")
    assert_equal(fit(again, ckpt_path="last"), whole)
    files = [next((tmp_path / "runs" / name).glob("*/prompts.safetensors")) for name in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
    if check_phases(again.model):
        assert [row["round"] for row in again.trainer.progress.history] == [1, 2, 3, 4]


@each_method
def test_order_of_clients_and_global_generator_do_not_matter(build, method, monkeypatch):
    first = fit(build(method))
    other = build(method)
    kind = type(other.datamodule)
    straight = kind.clients.fget
    monkeypatch.setattr(kind, "clients", property(lambda data: straight(data)[::-1]))
    torch.manual_seed(98765)
    assert_equal(fit(other), first)


@each_method
def test_partial_participation(build, method):
    run = build(method, "--trainer.cohort_size=1", "--trainer.rounds=3")
    fit(run)
    cohorts = [[name for name in row if name.endswith("/loss")] for row in run.trainer.progress.history]
    assert [len(cohort) for cohort in cohorts] == ([1, 1, 1] if check_phases(run.model) else [])


@each_method
def test_what_is_personal_is_never_sent(build, method):
    run = build(method)
    for phase in check_phases(run.model):
        assert not [name for name in phase.upload if covers(run.model.personal, name)]


@each_method
def test_communication_is_what_the_phases_upload(build, method):
    run = build(method)
    fit(run)
    if phases := check_phases(run.model):
        row = run.trainer.progress.history[-1]
        sent = sum(numel({n: v for n, v in run.model.state_dict().items() if covers(p.upload, n)}) for p in phases)
        assert row["upload_parameters"] == sent
        assert row["upload_bytes"] == 4 * sent
    else:
        assert not run.trainer.progress.history


@each_method
def test_prepared_constants_give_the_same_as_images(build, method):
    run = build(method)
    images = torch.rand(
        5, 3, run.model.clip.image_size, run.model.clip.image_size, generator=torch.Generator().manual_seed(0)
    )
    run.model.eval()
    constants = run.model.prepare(images)
    assert torch.equal(run.model(images), run.model(constants))
    assert all(len(value) == 5 and not value.requires_grad for value in constants.values())


@each_method
def test_deployed_file_scores_the_same(build, method, tmp_path):
    run = build(method)
    fit(run)
    deployed, personal, model = load_deployed(next((tmp_path / "runs").glob("*/*/prompts.safetensors")))
    fresh = build(method, "--seed_everything=7")
    fresh.trainer._attach(fresh.model, fresh.datamodule)
    scores = evaluate(fresh.model, fresh.datamodule, fresh.trainer.fabric, deployed, personal)
    assert model["class_path"].endswith(type(run.model).__name__)
    table = json.loads(next((tmp_path / "runs").glob("*/*/summary.json")).read_text())["accuracy"]
    title = "last round (2)" if check_phases(run.model) else "zero-shot CLIP"
    assert table[title] == scores


@pytest.mark.filterwarnings("default")  # Lightning's own: deprecated calls, few workers
@each_method
def test_plain_trainer_trains_it_centrally(build, method, tmp_path):
    run = build(method)
    trainer = lightning.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1,
        default_root_dir=tmp_path,
    )
    before = {k: v.clone() for k, v in run.model.state_dict().items()}
    if not check_phases(run.model):
        trainer.test(run.model, run.datamodule, verbose=False)
        assert 0 <= trainer.callback_metrics["test_accuracy"] <= 1
        return
    trainer.fit(run.model, run.datamodule)
    assert trainer.global_step == 2
    assert all(not torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


@each_method
def test_describes_itself_in_json(build, method):
    described = json.loads(json.dumps(build(method).model.describe()))
    assert described["class_names"] == ["circle", "square", "star"]
    assert described["clip"]["name"] == "fedvlp-tiny"
