"""The command ``fedvlp export``. It imports modules that need PyTorch after parsing its options."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP, config_option, trained_config, trained_file
from fedvlp.runs.run_folder import describe_choice, find_run_folder, list_run_files


def run_export(arguments: Sequence[str]) -> int:
    """Write the file, print the difference of its output from the method's, and return the exit code."""
    parser = argparse.ArgumentParser(
        "fedvlp export",
        description="Write a trained method as one graph from images to logits, or to probabilities of several labels, "
        "and a JSON file with its classes and preprocessing. Dotted options, such as --model.clip.pretrained, set "
        "where CLIP's weights are now.",
        allow_abbrev=False,
    )
    help = "folder of a run or of several runs (the newest), a prompts.safetensors or a checkpoint"
    parser.add_argument("run", type=Path, metavar="RUN", help=help)
    parser.add_argument("--format", choices=("onnx", "torch_export"), required=True, help="format of the file")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    options, others = parser.parse_known_args(arguments)
    from fedvlp.commands.lightning_cli import FederationCLI
    from fedvlp.runs.descriptions import load_deployed_to_all
    from fedvlp.tools.export.export import export_method

    trained = trained_file(str(options.run), "export")
    sys.stdout.write(describe_choice(options.run))
    config = trained_config(trained, options.allow)
    # On the CPU, because each constant of a graph stores its device.
    config["trainer"] |= {"accelerator": "cpu", "runtime": {"default_callbacks": False}}
    command = FederationCLI.make([config_option(config), *others], prog="fedvlp export")
    command.model.load_state(load_deployed_to_all(trained, command.model))
    inputs = list(list_run_files([trained, find_run_folder(trained)]))
    difference = export_method(command.model, options.format, options.output, inputs)
    sys.stdout.write(f"{options.output}: its output differs from the method's by at most {difference:.1e}\n")
    sys.stdout.write(f"{options.output.with_suffix('.json')}: classes and preprocessing\n")
    return 0
