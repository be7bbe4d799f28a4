"""Whole runs of classifiers in closed form: secure sum, noise, prediction, and what they refuse."""

from __future__ import annotations

import csv
import math

import pytest
import torch

from fedvlp import Fed3R, FedGDA, FedNCM
from fedvlp.commands.cli import main
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.utils.errors import UserError
from tests.helpers.runs import make_run


def classifier_of(image_root, folder, method, *arguments):
    """The classifier and the last row of a run of one round with three clients."""
    folder.mkdir()
    run = make_run(image_root, folder, method, "--data.held_out=null", "--trainer.rounds=1", *arguments)
    run.trainer.fit(run.model, run.datamodule)
    return run.trainer.run_state.server.deployed, run.trainer.run_state.history[-1]


def test_a_secure_sum_gives_the_same_classifier(image_root, tmp_path):
    plain, row = classifier_of(image_root, tmp_path / "plain", "fed_gda")
    summed, other = classifier_of(image_root, tmp_path / "sum", "fed_gda", "--trainer.server.secure_sum=true")
    for name, value in plain.items():
        assert (summed[name] - value).norm() <= 1e-3 * value.norm()
    assert other["validation"] == pytest.approx(row["validation"])


def noise(multiplier, place):
    """The arguments of noise for differential privacy that shortens no upload of FedNCM."""
    option = "--trainer.server.aggregation"
    return [
        f"{option}=DPFedAvg",
        f"{option}.clip_norm=1.74",
        f"{option}.noise_multiplier={multiplier}",
        f"{option}.noise_at={place}",
    ]


@pytest.mark.parametrize("options", [["--trainer.server.secure_sum=true"], noise(1, "server")], ids=["sum", "noise"])
def test_fed_cof_refuses_what_hides_single_uploads_in_one_line(image_root, tmp_path, options):
    with pytest.raises(UserError) as refused:
        classifier_of(image_root, tmp_path / "run", "fed_cof", *options)
    assert "\n" not in str(refused.value)


def test_noise_moves_the_classifier_and_is_accounted_for(image_root, tmp_path):
    little, _ = classifier_of(image_root, tmp_path / "little", "fed_ncm", *noise(1e-7, "client"))
    noisy, row = classifier_of(image_root, tmp_path / "noisy", "fed_ncm", *noise(1, "client"))
    assert all(value.isfinite().all() for value in noisy.values())
    assert (noisy["weight"] - little["weight"]).norm() > 0.01 * little["weight"].norm()
    assert math.isfinite(row["privacy/epsilon"])


@pytest.mark.parametrize(
    ("kind", "count", "norm"),
    [(FedNCM, 1, 1.74), (FedNCM, 2, 1.501), (Fed3R, 1, 2.001), (Fed3R, 2, 1.81), (FedGDA, 1, 2.001), (FedGDA, 2, 1.81)],
)
def test_no_upload_is_longer_than_the_clip_norm_of_the_cards(clip, kind, count, norm):
    clients = {} if kind is FedNCM else {"num_clients": 1}
    method = kind(["dog", "owl"], clip=clip, **clients)
    (phase,) = method.configure_phases()
    method.start_client(RoundContext(0, phase, Client(0, 0, count)))
    features = torch.randn(1, 128).expand(count, -1)  # of equal images, whose means are the longest
    method.training_step(({"features": features}, torch.zeros(count, dtype=torch.long)), 0)
    length = math.sqrt(sum(value.square().sum().item() for value in method.upload_state().values()))
    assert 0.95 * norm < length <= norm


def test_other_classes_are_refused_in_one_line(image_root, tmp_path, capsys):
    run = make_run(image_root, tmp_path, "fed_ncm", "--trainer.rounds=1")
    run.trainer.fit(run.model, run.datamodule)
    given = [f"--ckpt_path={run.trainer.folder}", f"--images={image_root / 'ink'}", "--trainer.accelerator=cpu"]
    assert main(["predict", *given, f"--output={tmp_path / 'own.csv'}"]) == 0
    with open(tmp_path / "own.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 12
    capsys.readouterr()
    names = tmp_path / "names.txt"
    names.write_text("house\ncow\ntree\n")
    for others in ("[house,cow,tree]", names):
        assert main(["predict", *given, f"--output={tmp_path / 'other.csv'}", f"--class_names={others}"]) == 1
        error = capsys.readouterr().err.strip()
        assert "learns for its own classes alone" in error
        assert len(error.splitlines()) == 1
