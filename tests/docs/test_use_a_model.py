"""The page on using a trained model: its commands and code run, one after another."""

import re
import shutil
from pathlib import Path

import pytest

import fedvlp
from fedvlp.commands.cli import main
from tests.helpers.documents import BRIEF, ROOT, Document

PAGE = Document(ROOT / "docs" / "use_a_model.md")


@pytest.fixture
def desk(image_root, tmp_path, monkeypatch):
    """Work in a folder with images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(image_root, "my_images")


def test_commands_and_code_run(desk, capsys):
    fit, calibrate, push, _ = PAGE.commands("fedvlp")
    assert main([*fit[1:], *BRIEF, "--trainer.accelerator=cpu"]) == 0
    assert main([*calibrate[1:], "--trainer.accelerator=cpu"]) == 0
    space: dict[str, object] = {}
    for code in PAGE.blocks("python"):
        if code not in PAGE.files().values():
            exec(compile(code, str(PAGE.path), "exec"), space)  # like code pasted by a reader
    (run,) = Path("runs/shapes").iterdir()
    assert main([word.replace("runs/shapes/TIME", str(run)) for word in push[1:]]) == 0
    named = {row[0].strip("`") for row in PAGE.rows("| file | what it holds |")}
    assert named == {path.name for path in Path("shapes_folder").iterdir()}


def test_every_attribute_of_a_classifier_is_there(clip):
    model = fedvlp.Classifier(fedvlp.PromptFL(["red", "blue"], clip))
    names = [re.match(r"`model\.(\w+)", row[0]) for row in PAGE.rows("It returns a `fedvlp.Classifier`")]
    names = [name.group(1) for name in names if name]
    assert len(names) == 9
    assert all(hasattr(model, name) for name in names)
