"""The command ``fedvlp export``: a trained method as a file that other programs run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP, config_option, trained_config
from fedvlp.utils.errors import unwrapped_errors

FORMATS = ("onnx", "torchscript", "torch_export")
DESCRIPTION = """\
Write a trained method as one graph from images to logits, with a JSON of its classes
and of how images become its input. Dotted options, such as --model.clip.pretrained,
say where CLIP's weights are now."""


def run_export(arguments: Sequence[str]) -> int:
    """Writes the file, says how far its logits are from the method's own, and returns the exit code.

    Raises:
        UserError: if there is no trained method with one model for everybody, or its file would compute something else.
    """
    given, options = _parser().parse_known_args(arguments)
    config = trained_config(_file_of(given.run), given.allow)
    from fedvlp.commands.console import quiet_lightning
    from fedvlp.commands.lightning_cli import FederationCLI
    from fedvlp.export import export_method
    from fedvlp.runs.run_folder import load_deployed_to_all

    quiet_lightning()
    config["trainer"] |= {"accelerator": "cpu", "default_callbacks": False}
    with unwrapped_errors():
        command = FederationCLI(
            run=False,
            args=[config_option(config), *options],
            save_config_callback=None,
            parser_kwargs={"prog": "fedvlp export"},
        )
        model = command.model
        model.load_state(load_deployed_to_all(_file_of(given.run), model))
        exported = export_method(model, given.format, given.output)
    sys.stdout.write(f"{exported.file}: its logits differ from ours by at most {exported.difference:.1e}\n")
    sys.stdout.write(f"{exported.description}: classes and preprocessing\n")
    return 0


def _file_of(run: Path) -> Path:
    """Returns the trained tensors of a run's folder; a file is taken as it is."""
    return run / "prompts.safetensors" if run.is_dir() else run


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's own options; all others are those of ``fedvlp predict``."""
    parser = argparse.ArgumentParser(
        "fedvlp export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, its prompts.safetensors or a checkpoint")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    return parser
