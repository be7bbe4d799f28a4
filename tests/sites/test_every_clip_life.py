"""The life cycle of each kind of open_clip's CLIPs, from training to an exported file."""

import csv

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedvlp
from fedvlp.commands.cli import main
from fedvlp.results.figures import Picture
from fedvlp.testing.runs import fit
from fedvlp.tools.export.export import ExportedClassifier, load_torch_export
from tests.helpers.assertions import assert_equal
from tests.helpers.images import CLASSES
from tests.helpers.interruptions import Interrupted, StopAfter
from tests.helpers.made_up_folders import CONFIGS, write_folder
from tests.helpers.runs import make_run, short_fit
from tests.helpers.shapes import unchecked
from tests.helpers.sites import Deployment, method_config, simulate

NO_BASELINES = "--trainer.baselines=[]"
METHODS = [("trip", "siglip"), ("fed_maple", "biomedclip"), ("promptfl", "coca"), ("promptfl", "worldwide")]


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Write a folder with a CLIP of each kind."""
    root = tmp_path_factory.mktemp("clips")
    return {kind: write_folder(kind, root / kind) for kind in CONFIGS}


def find_run(folder, name):
    (run,) = (folder / "runs" / name).iterdir()
    return run


@pytest.mark.parametrize(("method", "kind"), METHODS)
def test_command_classifier_and_export_predict_the_same(method, kind, clips, image_root, tmp_path, capsys, monkeypatch):
    cache = f"--data.cache_dir={tmp_path / 'cache'}"
    given = [f"--config=methods/{method}", *short_fit(image_root, tmp_path)]
    given += [f"--model.clip.name=local-dir:{clips[kind]}", "--data.batch_size=4", "--trainer.name=run"]
    given += ["--trainer.rounds=1"]
    assert main(["fit", *given]) == 0
    run = find_run(tmp_path, "run")
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(run), "--images", str(image_root / "ink"), "--output", str(table)]) == 0
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    predicted = torch.tensor([[float(row[name]) for name in CLASSES] for row in rows])
    assert predicted.std(0).min() > 1e-4
    classifier = fedvlp.from_pretrained(run)
    images = torch.stack([classifier.preprocess(Image.open(row["path"])) for row in rows])
    torch.testing.assert_close(classifier(images).softmax(1), predicted, atol=1e-5, rtol=0)
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_exporting", lambda: True)
        patched.setattr(torch, "while_loop", plain_loop)
        exported = ExportedClassifier(classifier.method)(images)
    torch.testing.assert_close(exported.softmax(1), predicted, atol=1e-5, rtol=0)
    monkeypatch.setattr(Picture, "image", lambda picture, kind: b"")  # rendering takes longer than training
    assert main(["explain", str(run), cache, "--num_images=1"]) == 0
    assert {"words.csv", "predictions.png"} <= {path.name for path in (run / "explanations").iterdir()}
    capsys.readouterr()
    assert main(["cost", *given]) == 0
    uploaded = sum(tensor.numel() for tensor in load_file(run / "prompts.safetensors").values())
    assert f"{uploaded:,}" in capsys.readouterr().out


def plain_loop(condition, step, values):
    """Replace ``torch.while_loop`` with a Python loop."""
    while condition(*values):
        values = step(*values)
    return values


def test_an_exported_file_predicts_the_same(clips, image_root, tmp_path):
    """Only BiomedCLIP (timm's image tower) is tested, because tracing takes ten seconds."""
    given = [f"--model.clip.name=local-dir:{clips['biomedclip']}", "--trainer.rounds=1", NO_BASELINES]
    run = make_run(image_root, tmp_path, "promptfl", *given)
    fit(run)
    file = tmp_path / "model.pt2"
    with unchecked():  # the tracer cannot follow the checks of shapes
        assert main(["export", str(run.trainer.folder), "--format=torch_export", "--output", str(file)]) == 0
    images = torch.randn(2, 3, 160, 160)
    torch.testing.assert_close(load_torch_export(file)(images), run.model(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", CONFIGS)
def test_half_precision_trains(kind, clips, image_root, tmp_path):
    given = [f"--model.clip.name=local-dir:{clips[kind]}", "--trainer.precision=bf16-mixed", NO_BASELINES]
    run = make_run(image_root, tmp_path, "promptfl", *given, "--trainer.rounds=1")
    start = run.model.communicable_state()["prompt"].clone()
    fit(run)
    trained = run.model.communicable_state()["prompt"]
    assert trained.isfinite().all()
    assert not torch.equal(trained, start)


def test_an_interrupted_run_resumes_to_the_same_bytes(clips, image_root, tmp_path):
    given = [f"--model.clip.name=local-dir:{clips['worldwide']}", "--trainer.precision=bf16-mixed", NO_BASELINES]
    broken, resumed, whole = (
        make_run(image_root, tmp_path, "trip", *given, f"--trainer.name={name}")
        for name in ("broken", "broken", "whole")
    )
    broken.trainer.add_callback(StopAfter(1))
    with pytest.raises(Interrupted):
        fit(broken)
    fit(resumed, ckpt_path="last")
    fit(whole)
    broken_prompts, whole_prompts = (find_run(tmp_path, name) / "prompts.safetensors" for name in ("broken", "whole"))
    assert broken_prompts.read_bytes() == whole_prompts.read_bytes()


def test_sites_equal_the_simulation(clips, image_root, tmp_path):
    config = method_config("promptfl")
    name = f"local-dir:{clips['xlm_roberta']}"
    config["model"]["init_args"]["clip"] = {"name": name}
    deployment = Deployment(tmp_path, image_root, allow=[name])
    assert deployment.serve(config) == 0
    assert_equal(deployment.prompts(), simulate(tmp_path, config, image_root).run_state.server.deployed)
