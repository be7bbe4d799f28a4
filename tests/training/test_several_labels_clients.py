"""Images with several labels in options of clients: a secure sum, noise, and several processes."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from fedvlp.commands.lightning_cli import run_federation
from tests.helpers.assertions import assert_equal
from tests.helpers.forks import exit_code, ranks
from tests.helpers.sites import metrics
from tests.training.test_several_labels import SHORT, fit

PROMPTFL = "--config=methods/promptfl"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Train without options, and return the run folder and its prompts."""
    run, _ = fit(tmp_path_factory.mktemp("plain"), PROMPTFL)
    return run, load_file(run / "prompts.safetensors")


def test_a_secure_sum_computes_the_mean(plain, tmp_path):
    run, _ = fit(tmp_path, PROMPTFL, "--trainer.server.secure_sum=true")
    prompt = load_file(run / "prompts.safetensors")["prompt"]
    assert torch.allclose(prompt, plain[1]["prompt"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("place", ["server", "client"])
def test_clipped_and_noisy_updates_have_an_epsilon(place, plain, tmp_path):
    words = {"clip_norm": 0.1, "noise_multiplier": 1.0, "noise_at": place}
    options = [f"--trainer.server.aggregation.{name}={value}" for name, value in words.items()]
    run, summary = fit(tmp_path, PROMPTFL, "--trainer.server.aggregation=DPFedAvg", *options)
    assert summary["privacy"]["epsilon"] > 0
    assert (load_file(run / "prompts.safetensors")["prompt"] - plain[1]["prompt"]).norm() > 0.1


@pytest.mark.every_config
def test_two_processes_equal_one_bit_for_bit(plain, tmp_path):
    words = ["fit", "--config=data/icon_scenes", PROMPTFL, "--model.clip=fedvlp-tiny", *SHORT]
    words += ["--trainer.devices=2", "--trainer.strategy=ddp", f"--trainer.default_root_dir={tmp_path}"]
    with ranks(partial(run_federation, words), tmp_path / "output") as processes:
        assert [exit_code(process) for process in processes] == [0, 0]
    (summary,) = tmp_path.rglob("summary.json")
    assert_equal(load_file(summary.parent / "prompts.safetensors"), plain[1])
    assert metrics(summary.parent) == metrics(plain[0])
