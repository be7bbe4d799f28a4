"""Complete runs of closed-form classifiers with secure sum and noise, and options that they reject."""

import math

import pytest
import torch

from fedvlp import Fed3R, FedGDA, FedNCM
from fedvlp.callbacks import Privacy
from fedvlp.commands.cli import main
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.results.record import load_record
from fedvlp.tools.pretrained import Classifier
from fedvlp.utils.errors import UserError
from tests.helpers.runs import make_run

SHORT = ("--data.held_out=null", "--trainer.rounds=1", "--trainer.baselines=[]")
SHORT += ("--trainer.runtime.default_callbacks=false",)


def train_classifier(image_root, folder, method, *arguments):
    """Run one round with three clients, and return the classifier and the last row of metrics."""
    run = make_run(image_root, folder, method, *SHORT, *arguments)
    run.trainer.add_callback(Privacy())
    run.trainer.fit(run.model, run.datamodule)
    return run.trainer.run_state.server.deployed, run.trainer.run_state.history[-1]


def test_a_secure_sum_gives_the_same_classifier(image_root, tmp_path):
    plain, row = train_classifier(image_root, tmp_path, "fed_gda")
    summed, other = train_classifier(image_root, tmp_path, "fed_gda", "--trainer.server.secure_sum=true")
    for name, value in plain.items():
        assert (summed[name] - value).norm() <= 1e-3 * value.norm()
    assert other["validation"] == pytest.approx(row["validation"])


def noise_options(multiplier, adder):
    """List the options of differential privacy with a clip norm that leaves FedNCM's uploads unchanged."""
    option = "--trainer.server.aggregation"
    return [
        f"{option}=DPFedAvg",
        f"{option}.clip_norm=1.74",
        f"{option}.noise_multiplier={multiplier}",
        f"{option}.noise_at={adder}",
    ]


SECURE_SUM = ["--trainer.server.secure_sum=true"]


@pytest.mark.parametrize("method", ["fed_cof", "tip_adapter"])
@pytest.mark.parametrize("options", [SECURE_SUM, noise_options(1, "server")], ids=["sum", "noise"])
def test_methods_that_need_single_uploads_reject_secure_sum_and_noise(image_root, tmp_path, method, options):
    with pytest.raises(UserError) as refused:
        train_classifier(image_root, tmp_path, method, *options)
    assert "\n" not in str(refused.value)


def test_noise_changes_the_classifier_and_epsilon_is_reported(image_root, tmp_path):
    little, _ = train_classifier(image_root, tmp_path, "fed_ncm", *noise_options(1e-7, "client"))
    noisy, row = train_classifier(image_root, tmp_path, "fed_ncm", *noise_options(1, "client"))
    assert all(value.isfinite().all() for value in noisy.values())
    assert (noisy["weight"] - little["weight"]).norm() > 0.01 * little["weight"].norm()
    assert math.isfinite(row["privacy/epsilon"])


@pytest.mark.parametrize(
    ("kind", "count", "norm"),
    [(FedNCM, 1, 1.74), (FedNCM, 2, 1.501), (Fed3R, 1, 2.001), (Fed3R, 2, 1.81), (FedGDA, 1, 2.001), (FedGDA, 2, 1.81)],
)
def test_uploads_stay_within_the_clip_norm_of_the_cards(clip, kind, count, norm):
    clients = {} if kind is FedNCM else {"num_clients": 1}
    method = kind(["dog", "owl"], clip=clip, **clients)
    (phase,) = method.configure_phases()
    method.start_client(RoundContext(0, phase, Client(0, 0, count)))
    features = torch.randn(1, 128).expand(count, -1)  # equal images have the longest mean
    method.training_step(({"features": features}, torch.zeros(count, dtype=torch.long)), 0)
    length = math.sqrt(sum(value.square().sum().item() for value in method.upload_state().values()))
    assert 0.95 * norm < length <= norm


def test_test_time_results_have_their_own_protocol_and_refuse_single_images(image_root, tmp_path, capsys):
    runs = []
    for method in ("centred_means", "fed_ncm"):
        run = make_run(image_root, tmp_path / method, method, "--trainer.rounds=1", "--trainer.baselines=[]")
        run.trainer.fit(run.model, run.datamodule)
        runs.append(run)
    folders = [run.trainer.log_dir for run in runs]
    centred, ncm = map(load_record, folders)
    assert centred.data["kind"] == f"{ncm.data['kind']}, test_time: the method saw the unlabelled test images"
    assert main(["compare", *folders]) == 0
    assert "2 tables that cannot be compared; they differ in protocol" in capsys.readouterr().out
    (centred_run, *_) = runs
    with pytest.raises(UserError, match="CentredMeans adapts to all test images of a domain"):
        centred_run.trainer.predict(centred_run.model, str(image_root), ckpt_path=folders[0])
    with pytest.raises(UserError, match="CentredMeans adapts to all test images of a domain"):
        Classifier(centred_run.model)


def test_the_centre_of_a_held_out_domain_is_the_mean_of_its_images(image_root, tmp_path):
    run = make_run(image_root, tmp_path, "centred_means", "--trainer.rounds=1", "--trainer.baselines=[]")
    run.trainer.fit(run.model, run.datamodule)
    model, server = run.model, run.trainer.run_state.server
    measured = run.trainer.evaluate(model, server.deployed, {})
    (split,) = (split for split in run.datamodule.evaluation_splits() if split.role == "held_out")
    features, labels = zip(*((inputs["features"].float(), labels) for inputs, labels in split.loader), strict=True)
    x = torch.nn.functional.normalize(torch.cat(features), dim=-1)
    predicted = ((x - x.mean(0)) @ server.deployed["weight"].T).argmax(-1)
    expected = 100 * (predicted == torch.cat(labels)).float().mean().item()
    assert measured[split.name] == pytest.approx(expected)
