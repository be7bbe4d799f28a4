"""A method for images with several labels, used after training: predict, export, push, from_pretrained and explain."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import fedvlp
from fedvlp import IconScenes
from fedvlp.commands.cli import main
from fedvlp.results.predictions import read_predictions
from fedvlp.runs.run_folder import read_model
from fedvlp.tools.explain.images import compute_views, relevance
from fedvlp.tools.export.export import ExportedClassifier, load_onnx
from fedvlp.tools.hub.push import write_folder
from tests.helpers.shapes import unchecked

CPU = "--trainer.accelerator=cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train PromptFL for one step on scenes of six icons, and return the run folder."""
    root = tmp_path_factory.mktemp("scenes")
    options = ["--data.cache_dir=null", "--data.num_classes=6", "--trainer.rounds=1", "--trainer.local.steps=1", CPU]
    start = ["fit", "--config=methods/promptfl", "--config=data/icon_scenes", "--model.clip=fedvlp-tiny"]
    assert main([*start, *options, "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={root}"]) == 0
    (prompts,) = root.rglob("prompts.safetensors")
    return prompts.parent


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Write the held-out scenes as PNG files, in the order of the run's predictions."""
    folder = tmp_path_factory.mktemp("photos")
    data = IconScenes(num_classes=6, held_out="pixel", cache_dir=None)
    for index, image in enumerate(data.images["pixel"][index] for index in range(len(data.images["pixel"]))):
        image.save(folder / f"{index:03}.png")
    return folder


def measured(run):
    """Read the run's own predictions of the held-out scenes."""
    return read_predictions(run)["last round"]["held_out/pixel"]


def predict(run, output, *words):
    """Run the command and read its CSV."""
    assert main(["predict", str(run), f"--output={output}", CPU, *words]) == 0
    with output.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def probabilities(rows, names):
    return np.array([[float(row[name]) for name in names] for row in rows])


def test_predict_writes_the_labels_that_reach_the_thresholds_of_the_run(run, photos, tmp_path, capsys):
    expected = measured(run)
    assert len(set(expected.thresholds)) > 1
    rows = predict(run, tmp_path / "out.csv", f"--images={photos}")
    names = IconScenes(num_classes=6).class_names
    assert list(rows[0]) == ["path", "labels", *names]
    assert probabilities(rows, names) == pytest.approx(expected.confidence[0], abs=1e-5)
    labels = [set(np.array(names)[row == 1]) for row in expected.predicted[0]]
    assert [set(filter(None, row["labels"].split("|"))) for row in rows] == labels
    # The folder's name is no set of labels.
    shutil.copytree(photos, tmp_path / names[0])
    predict(run, tmp_path / "out.csv", f"--images={tmp_path / names[0]}")
    assert not list(tmp_path.glob("*.json"))


def test_predict_prints_the_labels_of_one_image(run, photos, tmp_path, capsys):
    index = int(measured(run).predicted[0].sum(1).argmax())
    image = photos / f"{index:03}.png"
    (row,) = predict(run, tmp_path / "out.csv", f"--images={image}")
    labels = row["labels"].split("|")
    assert len(labels) > 1
    text = ", ".join(f"{name} ({100 * float(row[name]):.1f} %)" for name in labels)
    assert f"{image}: {text}\n" in capsys.readouterr().out


def test_other_labels_are_compared_with_the_same_negative_class(run, photos, tmp_path):
    names = fedvlp.from_pretrained(run).class_names
    trained = predict(run, tmp_path / "trained.csv", f"--images={photos}")
    others = predict(run, tmp_path / "other.csv", f"--images={photos}", f"--class_names=[{names[2]}, pale house]")
    assert list(others[0]) == ["path", "labels", names[2], "pale house"]
    assert probabilities(others, names[2:3]) == pytest.approx(probabilities(trained, names[2:3]), abs=1e-5)
    for row, before in zip(others, trained, strict=True):
        # A new label has a threshold of 50 %.
        assert ("pale house" in row["labels"]) == (float(row["pale house"]) >= 0.5)
        assert (names[2] in row["labels"]) == (names[2] in before["labels"])


def test_a_classifier_gives_the_labels_of_predict_and_survives_saving(run, photos, tmp_path):
    rows = predict(run, tmp_path / "out.csv", f"--images={photos}")
    classifier = fedvlp.from_pretrained(run)
    files = [row["path"] for row in rows]
    found = classifier.predict(files)
    assert found.numpy() == pytest.approx(probabilities(rows, classifier.class_names), abs=1e-6)
    labels = classifier.classify(files)
    assert ["|".join(each) for each in labels] == [row["labels"] for row in rows]
    for each, values in zip(labels, found, strict=True):
        assert all(value == values[classifier.class_names.index(name)] for name, value in each.items())
    pixels = torch.stack([classifier.preprocess(Image.open(file)) for file in files])
    assert torch.allclose(classifier(pixels).sigmoid(), found)
    classifier.save_pretrained(tmp_path / "saved")
    again = fedvlp.from_pretrained(tmp_path / "saved")
    assert again.classify(files) == labels
    assert again.method.label_thresholds == measured(run).thresholds
    assert classifier.for_classes(classifier.class_names).classify(files) == labels


def test_the_exported_forward_computes_the_probabilities_of_labels(run):
    classifier = fedvlp.from_pretrained(run)
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ExportedClassifier(classifier.method)(images), classifier.predict(images))


@pytest.mark.every_config
def test_an_exported_file_computes_probabilities_and_names_thresholds(run, tmp_path, capsys):
    pytest.importorskip("onnx")
    output = tmp_path / "model.onnx"
    with unchecked():
        assert main(["export", str(run), "--format=onnx", f"--output={output}"]) == 0
    described = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    classifier = fedvlp.from_pretrained(run)
    assert described["class_names"] == classifier.class_names
    assert described["thresholds"] == list(measured(run).thresholds)
    assert described["output"] == {"name": "probabilities", "type": "float32", "shape": ["batch", 6]}
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_onnx(output)(images), classifier.predict(images), rtol=0, atol=1e-5)


def test_a_pushed_folder_lists_labels_and_thresholds(run, photos, tmp_path):
    write_folder(run, tmp_path / "out", "ann/scenes")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    classifier = fedvlp.from_pretrained(run)
    for name, threshold in zip(classifier.class_names, measured(run).thresholds, strict=True):
        assert f"| {name} | {threshold:.1%} |" in card
    assert "classifier for 6 labels" in card
    assert "## Mean average precision" in card
    assert "¬" not in card
    pushed = fedvlp.from_pretrained(tmp_path / "out")
    assert pushed.classify(sorted(photos.iterdir())) == classifier.classify(sorted(photos.iterdir()))


def test_explanations_show_the_labels_of_each_scene(run, tmp_path):
    label = IconScenes(num_classes=6).class_names[4]
    output = tmp_path / "out"
    words = ["--num_images=3", f"--toward={label}", "--what=predictions,overlays", f"--output={output}"]
    assert main(["explain", str(run), *words]) == 0
    captions = {entry["file"]: entry for entry in json.loads((output / "captions.json").read_text(encoding="utf-8"))}
    assert captions["overlays.png"]["alt"].count(f"maps for {label}") == 3
    text = captions["predictions.png"]["alt"]
    data = IconScenes(num_classes=6, held_out="pixel")
    expected = measured(run)
    for index in (1, 5, 8):  # evenly spread over ten scenes
        names = np.array(data.class_names)
        labels = names[expected.labels[index] == 1]
        rows = zip(names, expected.confidence[0, index], expected.predicted[0, index], strict=True)
        chosen = [f"{name} {value:.0%}" for name, value, is_chosen in rows if is_chosen]
        mark = "✓" if list(expected.labels[index]) == list(expected.predicted[0, index]) else "✗"
        assert f"pixel: {', '.join(labels)} – " in text
        assert f"{mark} PromptFL: {', '.join(chosen) or 'no label'}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "--what=overlays", "--toward=true"], "These images have several true labels"),
        (["calibrate"], "calibrate supports one label per image"),
        (["audit"], "audit supports one label per image"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_for_one_label_are_refused(run, tmp_path, capsys, words, message):
    assert main([words[0], str(run), *words[1:]]) == 1
    assert message in capsys.readouterr().err


def test_maps_explain_the_difference_to_the_negative_class(run):
    classifier = fedvlp.from_pretrained(run)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    classes = torch.tensor([1, 3])
    found = compute_views(classifier.method, images, classes, "grad_cam").maps["PromptFL"]

    def difference(pixels):
        logits = classifier.method({"features": classifier.method.clip.encode_image(pixels)})
        return logits[:, :6] - logits[:, 6:]

    expected = relevance(classifier.method.clip, difference, images, classes, "grad_cam")
    torch.testing.assert_close(found, expected)


def test_a_resumed_finished_run_keeps_its_thresholds(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    before = read_model(copied / "prompts.safetensors")["label_thresholds"]
    assert before == list(measured(run).thresholds)
    assert main(["fit", f"--config={copied / 'config.yaml'}", f"--ckpt_path={copied}"]) == 0
    assert read_model(copied / "prompts.safetensors")["label_thresholds"] == before


def test_thresholds_of_zero_shot_clip_are_stored(run, tmp_path):
    config = ["--config=methods/zero_shot", "--config=data/icon_scenes", "--model.clip=fedvlp-tiny"]
    options = ["--data.cache_dir=null", "--data.num_classes=6", CPU, f"--trainer.default_root_dir={tmp_path}"]
    assert main(["fit", *config, *options]) == 0
    (prompts,) = tmp_path.rglob("prompts.safetensors")
    stored = read_predictions(run)["zero-shot CLIP"]["held_out/pixel"].thresholds
    assert read_model(prompts)["label_thresholds"] == list(stored)


def test_a_run_is_verified(run, capsys):
    assert main(["verify", str(run), CPU, "--data.cache_dir=null"]) == 0
    assert "verified: PromptFL" in capsys.readouterr().out
