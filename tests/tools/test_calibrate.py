"""``fedvlp calibrate``: the temperature minimises the loss, is stored in the run's prompts, and changes no class."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

import fedvlp
from fedvlp.commands.cli import main
from fedvlp.core.predictions import calibration_errors
from fedvlp.tools.calibrate import fit_temperature, predict
from fedvlp.tools.export.export import ExportedClassifier
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors, write_tensors
from tests.helpers.images import CLASSES


def made_up(temperature, images=4000, classes=5):
    """Draw logits, and labels with the probabilities softmax(logits / temperature)."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(1)
    return logits, labels


def slow_loss(logits, labels, temperature):
    """Sum -log p over images."""
    powers = np.exp(logits.numpy() / temperature)
    return -sum(np.log(row[label] / row.sum()) for row, label in zip(powers, labels.tolist(), strict=True))


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_fit_recovers_a_temperature(temperature):
    logits, labels = made_up(temperature)
    found = fit_temperature([(logits[:1000], labels[:1000]), (logits[1000:], labels[1000:])])
    assert found == pytest.approx(temperature, rel=0.05)
    grid = found * np.linspace(0.9, 1.1, 11)
    assert np.argmin([slow_loss(logits, labels, each) for each in grid]) == 5
    assert fit_temperature([(2 * logits.flip(0), labels.flip(0))]) == pytest.approx(2 * found, rel=1e-3)
    before, after = predict(logits, labels, 1.0), predict(logits, labels, found)
    assert np.array_equal(before.predicted, after.predicted)
    assert calibration_errors(after)[0] < 3
    assert temperature == 1 or calibration_errors(before)[0] > 2 * calibration_errors(after)[0]


def test_images_that_are_all_right_have_no_temperature():
    logits, _ = made_up(1.0, images=10)
    for splits in ([], [(logits, logits.argmax(-1))]):
        with pytest.raises(UserError, match="Expected misclassified validation images, got none"):
            fit_temperature(splits)


@pytest.mark.usefixtures("home")  # verify ignores the cache of a config
def test_a_calibrated_run_gives_calibrated_probabilities_everywhere(copied_run, image_root, tmp_path, capsys, clip):
    uncalibrated = fedvlp.from_pretrained(copied_run, clip=clip)
    prompts = copied_run / "prompts.safetensors"
    tensors, header = read_tensors(prompts)
    header["model"]["calibration_temperature"] = 50.0  # an earlier calibration has no influence
    write_tensors(prompts, tensors, header)
    assert main(["calibrate", str(copied_run), "--trainer.accelerator=cpu"]) == 0
    printed = capsys.readouterr().out
    classifier = fedvlp.from_pretrained(copied_run, clip=clip)
    temperature = classifier.method.calibration_temperature
    assert temperature not in (1, 50)
    assert f"temperature {temperature:g} -> {prompts}\n{copied_run / 'explanations' / 'reliability.png'}" in printed
    captions = (copied_run / "explanations" / "captions.json").read_text()
    assert "before and after calibration, on held_out/photo" in captions

    paths = sorted((image_root / "photo").rglob("*.png"))
    images = torch.stack([uncalibrated.preprocess(Image.open(path).convert("RGB")) for path in paths])
    expected = (uncalibrated(images) / temperature).softmax(-1)
    classifier.save_pretrained(tmp_path / "saved")
    for same in (classifier, fedvlp.from_pretrained(tmp_path / "saved", clip=clip), classifier.for_classes(CLASSES)):
        torch.testing.assert_close(same.predict(paths), expected)
    torch.testing.assert_close(ExportedClassifier(classifier.method)(images).softmax(-1), expected)
    output = tmp_path / "predictions.csv"
    assert main(["predict", str(copied_run), f"--images={image_root / 'photo'}", f"--output={output}"]) == 0
    with output.open(newline="") as file:
        written = {row["path"]: [float(row[name]) for name in CLASSES] for row in csv.DictReader(file)}
    torch.testing.assert_close(torch.tensor([written[str(path)] for path in paths]), expected, atol=2e-6, rtol=0)

    output = tmp_path / "scores.json"
    assert main(["test", str(copied_run), f"--output={output}", "--trainer.accelerator=cpu"]) == 0
    before = json.loads((copied_run / "summary.json").read_text())["metrics"]["last round"]["held_out/photo"]
    after = json.loads(output.read_text())["metrics"]["held_out/photo"]
    assert after["class_accuracy"] == before["class_accuracy"]
    rows = {words[0]: words[1:] for words in map(str.split, printed.splitlines()) if words}
    assert rows["held_out/photo"][::3] == [f"{scores['calibration_error']:.2f}" for scores in (before, after)]
    assert rows.keys() >= {"validation/ink", "validation/paint"}
    assert main(["verify", str(copied_run)]) == 0


def test_a_checkpoint_stores_no_temperature(copied_run, capsys):
    (checkpoint,) = copied_run.glob("checkpoints/*")
    assert main(["calibrate", str(checkpoint)]) == 1
    assert "is not a file of the kind prompts" in capsys.readouterr().err
