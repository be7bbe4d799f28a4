"""``fedvlp audit``: files for trained runs, prompts without a run, and untrained methods; and errors."""

import json
import shutil

import pytest

from fedvlp.commands.cli import main

SHORT = [
    *("--inversion.gradients=1", "--inversion.steps=1", "--membership.images=5", "--membership.resamples=9"),
    *("--trainer.accelerator=cpu", "--trainer.runtime.num_threads=1"),
]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_audit_is_written_to_the_run_folder(copied_run, capsys):
    folder = copied_run
    assert main(["audit", f"--ckpt_path={folder}", *SHORT]) == 0
    printed = capsys.readouterr().out
    assert names(folder / "audit") == ["audit.json", "inversion.png"]
    assert all(str(folder / "audit" / name) in printed for name in names(folder / "audit"))
    assert "full model, closed form" in printed
    assert "AUC 0.5 reveals nothing" in printed
    facts = json.loads((folder / "audit" / "audit.json").read_text(encoding="utf-8"))
    assert facts["is_trained"]
    assert facts["inversion"]["options"]["steps"] == 1
    assert [result["name"] for result in facts["membership"]["clients"]] == ["ink", "paint"]


def test_prompts_without_a_run_need_data(finished_run, image_root, tmp_path, capsys):
    path = tmp_path / "prompts.safetensors"
    shutil.copyfile(finished_run / "prompts.safetensors", path)
    assert main(["audit", f"--ckpt_path={path}", *SHORT]) == 1
    assert "PromptFL can't be audited. inversion left out: There are no images" in capsys.readouterr().err
    arguments = ["--config=data/folders", f"--data.root={image_root}", "--data.held_out=photo", "--data.cache_dir=null"]
    assert main(["audit", f"--ckpt_path={path}", f"--output={tmp_path}", "--what=membership", *arguments, *SHORT]) == 0
    assert "AUC" in capsys.readouterr().out


def test_an_untrained_method_is_audited_from_its_config(image_root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [
        *("--config=methods/diprompt", "--config=data/folders", f"--data.root={image_root}", "--data.held_out=photo"),
        *("--data.cache_dir=null", "--model.clip.name=fedvlp-tiny", "--model.prompt_length=4"),
        *("--what=membership", "--seed_everything=3"),
    ]
    assert main(["audit", *arguments, *SHORT]) == 0
    assert "model: the server's" in capsys.readouterr().out
    facts = json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))
    assert (facts["method"], facts["is_trained"], facts["seed"]) == ("DiPrompT", False, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what=membership,words"], "--what: expected inversion, membership (comma-separated); got 'words'"),
        (["--ckpt_path=last"], "audit needs a run"),
        (["--ckpt_path=nowhere"], "No file"),
    ],
)
def test_wrong_options_write_no_files(finished_run, tmp_path, capsys, arguments, message):
    assert main(["audit", f"--ckpt_path={finished_run}", f"--output={tmp_path / 'out'}", *SHORT, *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_as_output_folder_is_rejected_before_any_work(finished_run, tmp_path, capsys):
    (tmp_path / "out").touch()
    assert main(["audit", f"--ckpt_path={finished_run}", f"--output={tmp_path / 'out'}"]) == 1
    assert "Expected a folder for --output" in capsys.readouterr().err
