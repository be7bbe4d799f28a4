"""What every method must keep to, through its config and on the tiny CLIP. A new config is tested by being there."""

from __future__ import annotations

import json
from contextlib import nullcontext

import lightning
import pytest
import torch

from fedvlp.core.phases import check_phases
from fedvlp.core.state import matches_prefix, num_bytes, numel
from fedvlp.runs.checkpoint import read_model
from fedvlp.runs.run_folder import load_trained
from fedvlp.training.callback import FederationCallback
from fedvlp.training.communication import COUNTS, communication_cost
from fedvlp.training.evaluation import evaluate
from tests.helpers.assertions import assert_equal, run_tensors
from tests.helpers.configs import METHODS
from tests.helpers.interruptions import Interrupted, StopAfter

each_method = pytest.mark.parametrize("method", METHODS)


class Sent(FederationCallback):
    """Keeps what each client uploads, by round, client and phase."""

    def __init__(self):
        self.states = {}

    def on_client_end(self, federation, phase, update):
        self.states[federation.run_state.server.round, update.client.id, phase.name] = update.state


def fit(run, **options):
    run.trainer.fit(run.model, run.datamodule, **options)
    return run_tensors(run.trainer.run_state)


@each_method
def test_trains_its_tensors_and_nothing_of_clip(build, method):
    run = build(method)
    before, fingerprint = {k: v.clone() for k, v in run.model.state_dict().items()}, run.model.clip.fingerprint()
    after = {name: value for name, value in fit(run).items() if not name.startswith("memory/")}
    run.model.clip._fingerprint = None
    assert run.model.clip.fingerprint() == fingerprint
    assert not any(name.startswith("clip") for name in run.model.state_dict())
    trained = {name for phase in check_phases(run.model) for name in before if matches_prefix(phase.train, name)}
    assert bool(trained) == bool(after)
    assert trained <= {name.split("/")[-1] for name in after}
    for name, value in after.items():
        # others are made of these, or count something; a bias that shifts all scores of a softmax has no gradient
        if name.split("/")[-1] in trained and not name.endswith(".bias"):
            assert not torch.equal(value, before[name.split("/")[-1]]), f"{name} did not move"


@each_method
def test_resumed_run_equals_an_unbroken_one(build, method, tmp_path):
    whole = fit(build(method, "--trainer.rounds=4", "--trainer.name=whole"))
    broken, again = (build(method, "--trainer.rounds=4", "--trainer.name=broken") for _ in range(2))
    trains = bool(check_phases(broken.model))
    broken.trainer.add_callback(StopAfter(2))
    with pytest.raises(Interrupted) if trains else nullcontext():
        fit(broken)
    assert_equal(fit(again, ckpt_path="last"), whole)
    files = [next((tmp_path / "runs" / name).glob("*/prompts.safetensors")) for name in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [row["round"] for row in again.trainer.run_state.history] == ([1, 2, 3, 4] if trains else [])


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
    cohorts = [[name for name in row if name.endswith("/loss")] for row in run.trainer.run_state.history]
    assert [len(cohort) for cohort in cohorts] == ([1, 1, 1] if check_phases(run.model) else [])


@each_method
def test_only_what_a_phase_uploads_is_sent_and_nothing_personal(build, method):
    run, sent = build(method), Sent()
    run.trainer.add_callback(sent)
    fit(run)
    private = (*run.model.personal, *run.model.train_only_personal)
    assert bool(sent.states) == bool(check_phases(run.model))
    uploads = {phase.name: phase.upload for phase in check_phases(run.model)}
    for (_, _, phase), state in sent.states.items():
        assert bool(state) == bool(uploads[phase])
        assert all(matches_prefix(uploads[phase], name) for name in state)
        assert not [name for name in state if matches_prefix(private, name)]


@each_method
def test_communication_is_what_was_sent_and_what_cost_says(build, method):
    """Of the client that sends most, over all phases; known before a run, and the same in every round."""
    run, sent = build(method), Sent()
    run.trainer.add_callback(sent)
    fresh = build(method).model
    cost = communication_cost(fresh, run.datamodule.clients).rows(rounds=2)[-1]
    fit(run)
    for row in run.trainer.run_state.history:
        states = {where: state for where, state in sent.states.items() if where[0] == row["round"] - 1}
        clients = {client for _, client, _ in states}
        for name, count in {"upload_parameters": numel, "upload_bytes": num_bytes}.items():
            assert row[name] == max(sum(count(s) for at, s in states.items() if at[1] == client) for client in clients)
        assert {name: row[name] for name in COUNTS} == {name: cost[name] for name in COUNTS}
    counted = sum(row["total_bytes"] for row in run.trainer.run_state.history)
    assert cost["total_bytes"] == counted + cost["once_bytes"] * len(run.datamodule.clients)


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
    prompts = next((tmp_path / "runs").glob("*/*/prompts.safetensors"))
    fresh = build(method, "--seed_everything=7")
    fresh.trainer._attach(fresh.model, fresh.datamodule)
    deployed, personal = load_trained(prompts, fresh.model)
    scores = evaluate(fresh.model, fresh.datamodule, fresh.trainer.fabric, deployed, personal)
    assert read_model(prompts)["class_path"].endswith(type(run.model).__name__)
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
    first = check_phases(run.model)[0]  # later phases combine what several clients sent
    moved = [not torch.equal(v, before[k]) for k, v in run.model.state_dict().items() if matches_prefix(first.train, k)]
    assert moved
    assert all(moved)


@each_method
def test_describes_itself_in_json(build, method):
    described = json.loads(json.dumps(build(method).model.describe()))
    assert described["class_names"] == ["circle", "square", "star"]
    assert described["clip"]["name"] == "fedvlp-tiny"
