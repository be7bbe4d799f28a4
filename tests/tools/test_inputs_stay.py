"""Commands never overwrite their input files."""

import os

import pytest

from fedvlp.commands.cli import main

COMMANDS = {
    "report": ["report", "RUN", "-o"],
    "compare": ["compare", "RUN", "--output"],
    "export": ["export", "RUN", "--format", "torch_export", "--output"],
    "test": ["test", "--ckpt_path", "RUN/prompts.safetensors", "--output"],
    "predict": ["predict", "RUN", "--images=RUN", "--output"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_the_run_is_rejected_as_output(command, copied_run, tmp_path, capsys):
    output = tmp_path / "model.pt2"
    os.link(copied_run / "prompts.safetensors", output)
    before = output.read_bytes()
    assert main([*(word.replace("RUN", str(copied_run)) for word in COMMANDS[command]), str(output)]) == 1
    assert f"{output} is an input file. Choose another name." in capsys.readouterr().err
    assert output.read_bytes() == before
