"""No command writes over what it reads."""

from __future__ import annotations

import os
import shutil

import pytest

from fedvlp.commands.cli import main

COMMANDS = {
    "report": ["report", "RUN", "-o"],
    "compare": ["compare", "RUN", "--output"],
    "export": ["export", "RUN", "--format", "torch_export", "--output"],
    "test": ["test", "--ckpt_path", "RUN/prompts.safetensors", "--output"],
}


def contents(folder):
    """What the files of a folder hold."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_the_run_is_no_output(command, trip_run, tmp_path, capsys):
    run = trip_run
    os.link(run / "prompts.safetensors", tmp_path / "model.pt2")
    before = contents(run)
    for output in (run / "summary.json", tmp_path / "model.pt2"):
        # An export has a description beside it.
        named = output.with_suffix(".pt2") if command == "export" else output
        words = [word.replace("RUN", str(run)) for word in COMMANDS[command]]
        assert main([*words, str(named)]) == 1
        assert f"{output} is one that is read. Name another." in capsys.readouterr().err
        assert contents(run) == before


def test_neither_an_image_nor_a_file_of_the_run_is_a_table_of_predictions(trip_run, image_root, tmp_path, capsys):
    image = tmp_path / "image.png"
    shutil.copy(next(image_root.rglob("*.png")), image)
    for output in (image, trip_run / "summary.json"):
        before = output.read_bytes()
        assert main(["predict", str(trip_run), f"--images={image}", f"--output={output}"]) == 1
        assert f"{output} is one that is read. Name another." in capsys.readouterr().err
        assert output.read_bytes() == before
