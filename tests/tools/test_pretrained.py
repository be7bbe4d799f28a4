"""A trained model without its run: the logits of `predict`, all forms of source, and no untrusted code."""

import csv
import json
import shutil
import sys

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

import fedvlp
from fedvlp import CLIPSpec, SingleDomain, UserError
from fedvlp.commands.cli import main
from fedvlp.runs.run_folder import read_model
from fedvlp.tools.pretrained import Classifier
from fedvlp.utils.tensor_files import read_tensors, write_tensors
from tests.helpers.archives import save_trap
from tests.helpers.assertions import assert_equal
from tests.helpers.images import CLASSES


def rewritten(run, folder, **model):
    """Copy a run's prompts, and change the description of the method in the header."""
    tensors, header = read_tensors(run / "prompts.safetensors")
    header["model"] |= model
    write_tensors(folder / "prompts.safetensors", tensors, header)
    return folder


def test_probabilities_equal_the_command_predict(finished_run, image_root, tmp_path, clip):
    output = tmp_path / "predictions.csv"
    arguments = [f"--ckpt_path={finished_run}", f"--images={image_root / 'photo'}", f"--output={output}"]
    assert main(["predict", *arguments, "--trainer.accelerator=cpu"]) == 0
    with output.open(newline="") as file:
        expected = list(csv.DictReader(file))
    classifier = fedvlp.from_pretrained(finished_run, clip=clip)
    assert classifier.class_names == list(CLASSES)
    found = classifier.predict([Image.open(row["path"]) for row in expected])
    assert found.shape == (24, 3)
    for row, probabilities in zip(expected, found.tolist(), strict=True):
        assert [row[name] for name in CLASSES] == [f"{value:.6f}" for value in probabilities]


def test_one_image_or_several_of_any_kind(finished_run, image_root, clip):
    classifier = fedvlp.from_pretrained(finished_run, clip=clip)
    path = next((image_root / "photo").rglob("*.png"))
    image = Image.open(path).convert("RGB")
    expected = classifier.predict([image])
    assert expected.shape == (1, 3)
    several = [path, str(path), image, np.asarray(image), classifier.preprocess(image)]
    for single in several:
        assert torch.equal(classifier.predict(single), expected)
    assert torch.allclose(classifier.predict(several), expected.expand(5, 3))
    batch = classifier.preprocess(image).expand(2, -1, -1, -1)
    assert classifier.predict(batch).shape == classifier.predict(np.stack([np.asarray(image)] * 2)).shape == (2, 3)
    grey = np.asarray(image.convert("L"))
    assert torch.equal(classifier.predict(grey), classifier.predict(Image.fromarray(grey)))
    with pytest.raises(UserError, match=r"Expected .*got Tensor of torch.float32 and shape \(3, 8, 8\)"):
        classifier.predict(torch.zeros(3, 8, 8))
    # It is frozen and stays in evaluation mode.
    torch.nn.Sequential(classifier).train()
    assert not any(module.training for module in classifier.modules())
    assert not any(parameter.requires_grad for parameter in classifier.parameters())


@pytest.mark.parametrize("name", ["", "prompts.safetensors", "checkpoints/round-00001.safetensors"])
def test_a_saved_and_reloaded_model_is_unchanged(finished_run, clip, tmp_path, name):
    classifier = fedvlp.from_pretrained(finished_run / name, clip=clip)
    classifier.save_pretrained(tmp_path / "new")
    again = fedvlp.from_pretrained(str(tmp_path / "new"), clip=clip)
    images = torch.randn(2, 3, classifier.image_size, classifier.image_size)
    assert torch.equal(again(images), classifier(images))


def test_other_classes_are_classified_with_the_trained_prompts(finished_run, clip, tmp_path):
    classifier = fedvlp.from_pretrained(finished_run, clip=clip)
    names = [classifier.class_names[1], "pale house"]
    for _ in range(2):
        other = classifier.for_classes(names)
        other.save_pretrained(tmp_path)
        again = fedvlp.from_pretrained(tmp_path, clip=clip)
        assert again.class_names == other.class_names == names
        assert_equal(again.state_dict(), classifier.state_dict())
    pixels = torch.randn(2, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(other(pixels), again(pixels))
    torch.testing.assert_close(other(pixels)[:, 0], classifier(pixels)[:, 1])


def test_other_clip_weights_and_personal_methods_are_rejected(finished_run, clip):
    with pytest.raises(UserError, match=r"belongs to another model: model\.clip_fingerprint"):
        fedvlp.from_pretrained(finished_run, clip=CLIPSpec("fedvlp-tiny", "random"))
    with pytest.raises(UserError, match="SingleDomain keeps tensors on each client"):
        Classifier(SingleDomain(["fig", "pear"], clip))


def test_a_foreign_class_is_imported_only_if_allowed(finished_run, tmp_path, monkeypatch, clip):
    (tmp_path / "stranger.py").write_text("from fedvlp import PromptFL\nclass Method(PromptFL): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = rewritten(finished_run, tmp_path, class_path="stranger.Method")
    with pytest.raises(UserError, match=r"code that is not part of fedvlp: 'stranger\.Method'"):
        fedvlp.from_pretrained(folder, clip=clip)
    assert "stranger" not in sys.modules
    assert type(fedvlp.from_pretrained(folder, clip=clip, allow=["stranger"]).method).__name__ == "Method"


@pytest.mark.parametrize(
    "spec", [{"name": "fedvlp-tiny", "pretrained": "evil.pt"}, {"name": "local-dir:{folder}/clip"}], ids=str
)
def test_a_torchscript_archive_named_by_foreign_prompts_is_not_run(finished_run, tmp_path, monkeypatch, capsys, spec):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    save_trap(tmp_path / "evil.pt", victim)
    clip = tmp_path / "clip"
    clip.mkdir()
    (clip / "open_clip_config.json").write_text(json.dumps({"model_cfg": open_clip.get_model_config("ViT-B-32")}))
    shutil.copy(tmp_path / "evil.pt", clip / "open_clip_pytorch_model.bin")
    monkeypatch.chdir(tmp_path)  # a relative path is searched from the working directory
    named = {key: value.format(folder=tmp_path) for key, value in spec.items()}
    model = read_model(finished_run / "prompts.safetensors")
    folder = rewritten(finished_run, tmp_path, init_args={**model["init_args"], "clip": named})
    with pytest.raises(UserError, match="is a TorchScript archive"):
        fedvlp.from_pretrained(folder)
    assert main(["predict", "--ckpt_path", str(folder / "prompts.safetensors"), "--images", str(tmp_path)]) == 1
    assert "is a TorchScript archive" in capsys.readouterr().err
    shutil.copy(finished_run / "config.yaml", tmp_path)
    assert main(["test", "--ckpt_path", str(folder)]) == 1
    assert "is a TorchScript archive" in capsys.readouterr().err
    assert victim.read_text() == "precious"


def test_classes_that_are_no_methods_and_unknown_options_are_rejected(finished_run, tmp_path, clip):
    options = read_model(finished_run / "prompts.safetensors")["init_args"]
    for changes, message in (
        ({"class_path": "fedvlp.data.icon_domains.module.IconDomains"}, "IconDomains', which is not a method"),
        ({"init_args": {**options, "crystals": 3}}, r"options that this version of .* does not support: .*crystals"),
    ):
        with pytest.raises(UserError, match=message):
            fedvlp.from_pretrained(rewritten(finished_run, tmp_path, **changes), clip=clip)
