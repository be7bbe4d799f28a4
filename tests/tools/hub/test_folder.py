"""The published folder of a run, and its card."""

import shutil

import pytest
import torch
import yaml

import fedvlp
from fedvlp import UserError
from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.tools.hub.push import find_paper, write_folder
from tests.helpers.configs import method_classes


def logits_of(classifier):
    size = classifier.image_size
    return classifier(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5)))


def test_the_folder_can_be_loaded_and_is_reproducible(finished_run, tmp_path, clip, capsys):
    assert main(["push", str(finished_run), "ann/figs", "--output", str(tmp_path / "one")]) == 0
    assert str(tmp_path / "one" / "README.md") in capsys.readouterr().out.splitlines()
    runs = str(finished_run.parent)  # the newest run is used, like in other commands
    assert main(["push", runs, "ann/figs", "--output", str(tmp_path / "two")]) == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["README.md", "config.yaml", "prompts.safetensors", "summary.json"]
    for name in names:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert str(finished_run.parents[2]).encode() not in content
    loaded = fedvlp.from_pretrained(tmp_path / "one", clip=clip)
    assert loaded.class_names == fedvlp.from_pretrained(finished_run, clip=clip).class_names


def test_the_card_contains_the_runs_results(finished_run, tmp_path):
    write_folder(finished_run, tmp_path / "out", "ann/figs", license="apache-2.0")
    card = (tmp_path / "out" / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata)["pipeline_tag"] == "image-classification"
    assert yaml.safe_load(metadata)["license"] == "apache-2.0"
    record = load_record(finished_run)
    assert text.strip().startswith("# PromptFL on DomainFolders")
    for expected in (record.split, record.protocol, record.clip_fingerprint, 'from_pretrained("hf://ann/figs")'):
        assert expected in text
    row = next(line for line in text.splitlines() if line.startswith("| last round (1) |"))
    assert row.split(" | ")[-1] == f"{record.last['held_out']:.2f} |"
    assert "Guo et al." in text


def test_personal_tensors_are_not_published(build, tmp_path, clip):
    run = build("fed_otp", "--trainer.rounds=1")
    run.trainer.fit(run.model, run.datamodule)
    folder = run.trainer.folder
    write_folder(folder, tmp_path / "out", "ann/figs")
    assert b"local_prompt" in (folder / "prompts.safetensors").read_bytes()
    assert b"local_prompt" not in (tmp_path / "out" / "prompts.safetensors").read_bytes()
    expected = logits_of(fedvlp.from_pretrained(folder, clip=clip))
    assert torch.equal(logits_of(fedvlp.from_pretrained(tmp_path / "out", clip=clip)), expected)


def test_an_unfinished_run_is_rejected(finished_run, tmp_path, capsys):
    assert main(["push", str(tmp_path), "ann/figs", "--output", str(tmp_path / "out")]) == 1
    assert "is not a run: it has no summary.json." in capsys.readouterr().err
    shutil.copy(finished_run / "config.yaml", tmp_path)
    with pytest.raises(UserError, match="has not ended"):
        write_folder(tmp_path, tmp_path / "out", "ann/figs")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="Expected a new or empty folder"):
        write_folder(finished_run, tmp_path, "ann/figs")


def test_every_method_names_its_paper():
    methods = [getattr(fedvlp, name) for name in method_classes()]
    assert [method.__name__ for method in methods if not find_paper(method)] == []
