"""The command ``fedvlp export``: a trained method as a file that other programs run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP, config_option, file_of_run, trained_config
from fedvlp.utils.errors import unwrapped_errors

RUN_HELP = "a run's folder, the folder of several, of which the newest, a prompts.safetensors or a checkpoint"
FORMATS = ("onnx", "torch_export")
DESCRIPTION = """\
Write a trained method as one graph from images to logits, with a JSON of its classes
and of how images become its input. Dotted options, such as --model.clip.pretrained,
say where CLIP's weights are now."""


def run_export(arguments: Sequence[str]) -> int:
    """Writes the file, prints how far its logits are from the method's own, and returns the exit code.

    Raises:
        UserError: if there is no trained method, it has no one model for all clients, or its file would compute
            something else.
    """
    options, others = _parser().parse_known_args(arguments)
    trained = file_of_run(options.run)
    config = trained_config(trained, options.allow)
    from fedvlp.commands.lightning_cli import FederationCLI
    from fedvlp.runs.run_folder import load_deployed_to_all
    from fedvlp.tools.export import export_method

    config["trainer"] |= {"accelerator": "cpu", "runtime": {"default_callbacks": False}}
    with unwrapped_errors():
        command = FederationCLI(
            run=False,
            args=[config_option(config), *others],
            save_config_callback=None,
            parser_kwargs={"prog": "fedvlp export"},
        )
        model = command.model
        model.load_state(load_deployed_to_all(trained, model))
        exported = export_method(model, options.format, options.output)
    sys.stdout.write(f"{exported.file}: its logits differ from ours by at most {exported.difference:.1e}\n")
    sys.stdout.write(f"{exported.description}: classes and preprocessing\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's own options; all others are those of ``fedvlp predict``."""
    parser = argparse.ArgumentParser(
        "fedvlp export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    return parser
