"""Centralised training: equal to ``lightning.Trainer`` on pooled batches, and federated options that it rejects."""

import json
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
import yaml

from fedvlp.core.aggregation.server_optimizers import FedAdam
from fedvlp.core.roles import CENTRALISED
from fedvlp.core.state import Client
from fedvlp.data import DomainFolders, Pooled
from fedvlp.methods.prompts import known_domain
from fedvlp.sites.data import SitesData
from fedvlp.tools.attacks import SignFlip
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.local_training import CosineDecay
from fedvlp.training.options import RunOptions, check_clients
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed
from tests.helpers.data import batches, same
from tests.helpers.trainer_options import grouped

FOLDER = configs_folder() / "methods"
ROUNDS = 3
POOL = f"--config={configs_folder() / 'centralised.yaml'}"
POOLED = (POOL, f"--trainer.rounds={ROUNDS}")
QUIET_RUN = "--trainer.runtime.default_callbacks=false"
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
}
METHODS = {
    "promptfl": ("torch.optim.SGD", {"lr": 0.05, "momentum": 0.9}),
    "fine_tuning": ("torch.optim.AdamW", {"lr": 1e-4, "weight_decay": 0.1}),
}


def arguments(method):
    kind, settings = METHODS[method]
    return [f"--model.optimizer={kind}", *(f"--model.optimizer.{name}={value}" for name, value in settings.items())]


def loader_of_round(data, round, client=None):
    """Create a round's loader, for the pool or for all clients together."""
    return data.train_dataloader(client, seed=derive_seed(0, round, 0, 0))


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")  # the test evaluates nothing
@pytest.mark.parametrize("method", ["promptfl", pytest.param("fine_tuning", marks=pytest.mark.every_config)])
def test_training_equals_lightnings_trainer(build, method, tmp_path):
    """Compare weights, moments and step counts after three rounds (epochs), with momentum and a schedule."""
    schedule = [
        "--trainer.local.schedule=CosineDecay",
        "--trainer.local.schedule.warmup_rounds=1",
        "--seed_everything=0",
    ]
    ours = build(method, *POOLED, *arguments(method), *schedule, QUIET_RUN, f"--trainer.evaluate_every={ROUNDS}")
    plain = build(method, *POOLED, *arguments(method))
    plain.model.load_state_dict(ours.model.state_dict())

    def configure_optimizers():
        optimizer = type(plain.model).configure_optimizers(plain.model)
        lr = optimizer.defaults["lr"]
        rate = CosineDecay(warmup_rounds=1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: rate.factor(epoch, ROUNDS, lr))
        return [optimizer], [scheduler]

    trainer = lightning.Trainer(
        max_epochs=ROUNDS, reload_dataloaders_every_n_epochs=1, default_root_dir=tmp_path, **QUIET
    )
    plain.model.configure_optimizers = configure_optimizers
    plain.model.train_dataloader = lambda: loader_of_round(plain.datamodule, trainer.current_epoch)
    plain.datamodule.prepare_data()
    plain.datamodule.setup("fit")
    plain.datamodule.bind(plain.model.transform)
    trainer.fit(plain.model)
    ours.trainer.fit(ours.model, ours.datamodule)
    steps = ROUNDS * -(-ours.datamodule.clients[0].num_examples // 4)
    assert trainer.global_step == steps
    exactly = {"atol": 0, "rtol": 0} if ours.model.needs_images else {"atol": 1e-6, "rtol": 1e-5}
    for name, expected in plain.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], expected, **exactly)
    memory = ours.trainer.run_state.optimizer_states[0]
    theirs = trainer.optimizers[0].state_dict()["state"]
    counts = [value for name, value in memory.items() if name.endswith("step")]
    assert all(count.item() == steps for count in counts)
    moments = {"promptfl": "momentum_buffer", "fine_tuning": "exp_avg_sq"}[method]
    sums = sorted(value.double().sum().item() for name, value in memory.items() if moments in name.split("/"))
    expected = sorted(state[moments].double().sum().item() for state in theirs.values())
    assert len(sums) == len(expected) > 0
    assert sums == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_a_pool_has_the_batches_of_all_clients_together(image_root):
    options = {"held_out": "photo", "batch_size": 4, "cache_dir": None}
    pooled, dealt = (DomainFolders(str(image_root), **options, **more) for more in ({"partition": Pooled()}, {}))
    for data in (pooled, dealt):
        data.prepare_data()
        data.setup("fit")
        data.bind(lambda image: torch.from_numpy(np.asarray(image.resize((4, 4)), np.float32)))
    (pool,) = pooled.clients
    assert (pool.domain, pool.is_pool, pool.num_examples) == (-1, True, sum(c.num_examples for c in dealt.clients))
    for round in range(2):
        expected = batches(loader_of_round(dealt, round))
        assert same(batches(loader_of_round(pooled, round)), expected)
        assert same(batches(loader_of_round(pooled, round, pool)), expected)
    assert pooled.split_hash == dealt.split_hash
    assert [split.num_examples for split in pooled.evaluation_splits()] == [
        split.num_examples for split in dealt.evaluation_splits()
    ]


def test_all_results_are_labelled_as_centralised(build, capsys):
    run = build("coop", "--trainer.rounds=1", "--trainer.local.steps=1", "--trainer.baselines=[]")
    run.trainer.fit(run.model, run.datamodule)
    folder = Path(run.trainer.log_dir)
    printed = capsys.readouterr().out
    assert "PromptFL on the pooled 24 images of all source domains" in printed
    assert f"held-out domain: photo; {CENTRALISED}\n" in printed
    assert f"{CENTRALISED}: nothing is sent; " in printed
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["protocol"] == f"held-out domain: photo; {CENTRALISED}"
    assert set(summary["communication_per_client_and_round"].values()) == {0}
    assert folder.parent.name.endswith("-photo-pool")


REFUSED = {
    "aggregation": FedAdam(),
    "attack": SignFlip(),
    "dropout": 0.5,
    "stragglers": 0.5,
    "add_ons": FedProx(0.1),
    "max_update_norm": 3.0,
}
POOL_ALONE = [Client(0, -1, 9, "pool", is_pool=True)]


def options(rounds=2, **options):
    return RunOptions(rounds, 0, "32-true", **grouped(options))


@pytest.mark.parametrize("name", REFUSED)
def test_federated_options_are_rejected(name):
    refused = options(**{name: REFUSED[name]})
    with pytest.raises(UserError, match=rf"centrally, without clients, so it does not support \w+\.{name}\. "):
        check_clients(refused, POOL_ALONE)
    check_clients(refused, [Client(0, 0, 9), Client(1, 1, 9)])


@pytest.mark.parametrize(("resets", "rounds"), [(True, 2), (True, 1), (False, 2)])
def test_resetting_the_optimizer_in_each_round_is_warned_about(caplog, resets, rounds):
    check_clients(options(rounds, reset_optimizer=resets), POOL_ALONE)
    assert ("--config centralised" in caplog.text) == (resets and rounds > 1)


def test_methods_with_one_domain_per_client_reject_a_pool(build):
    run = build("fed_dpt", POOL, QUIET_RUN)
    with pytest.raises(UserError, match="ByDomain or Dispersed"):
        run.trainer.fit(run.model, run.datamodule)
    with pytest.raises(UserError, match="one domain each"):
        known_domain(POOL_ALONE[0], "FedAPT")


@pytest.mark.parametrize(("central", "federated"), [("coop", "promptfl"), ("erm", "fine_tuning")])
def test_the_config_equals_the_federated_config_with_pooled_data(central, federated):
    """Model and batches are the same, so that results differ only because of the federation."""
    one, other = (yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in (central, federated))
    assert one["model"] == other["model"]
    assert one["data"]["init_args"] == {**other["data"]["init_args"], "partition": "Pooled"}


def contains(config, part):
    """Check whether a config contains all values of a part, at any depth."""
    for name, value in part.items():
        if not (contains(config[name], value) if isinstance(value, dict) else config[name] == value):
            return False
    return True


@pytest.mark.parametrize("name", ["coop", "erm", "swad", "do_prompt", "hcvp"])
def test_centralised_configs_contain_the_general_centralised_config(name):
    general = yaml.safe_load((configs_folder() / "centralised.yaml").read_text())
    own = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    for section, options in {"trainer": general["trainer"], "data": general["data"]["init_args"]}.items():
        found = own[section] if section == "trainer" else own[section]["init_args"]
        assert contains(found, options)


def test_real_sites_cannot_be_pooled():
    with pytest.raises(UserError, match="one client with its own domain"):
        SitesData(sites=["north", "south"], class_names=["cat", "dog"], partition=Pooled())
