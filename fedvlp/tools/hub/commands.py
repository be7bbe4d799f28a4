"""The commands ``fedvlp push`` and ``fedvlp convert``: models to a hub or a folder, and prompts from Dassl."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP
from fedvlp.utils.errors import UserError


def run_push(arguments: Sequence[str]) -> int:
    """Pushes the model or writes its folder, says where it is, and returns the exit code.

    Raises:
        UserError: if it is no finished run, or the hub or the disk refuses.
    """
    given = _push_parser().parse_args(list(arguments))
    from fedvlp.pretrained.loading import check_repository
    from fedvlp.tools.hub.push import push_to_hub, write_folder

    check_repository(given.repository)
    if given.output is not None:
        files = write_folder(given.run, given.output, given.repository, given.license, given.allow)
        sys.stdout.write("".join(f"{file}\n" for file in files))
        return 0
    options = {"private": given.private, "license": given.license, "allow": given.allow}
    sys.stdout.write(f"{push_to_hub(given.run, given.repository, **options)}\n")
    sys.stdout.write(f'Load it: fedvlp.from_pretrained("hf://{given.repository}")\n')
    return 0


def _push_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedvlp push",
        description="Put what a finished run learned on the Hugging Face hub: prompts.safetensors, a card made of the "
        "run, its config without folders of this machine, and its summary. Neither CLIP nor images are uploaded.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="The run's folder, or of several the newest.")
    parser.add_argument("repository", metavar="USER/NAME", help="The repository; made if it is not there.")
    parser.add_argument("--private", action="store_true", help="Only its owner sees it.")
    parser.add_argument("--license", default="unknown", help="Under which it is given, such as apache-2.0.")
    parser.add_argument("-o", "--output", type=Path, help="Write the files into this new folder, and push nothing.")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    return parser


def run_convert(arguments: Sequence[str]) -> int:
    """Converts the file, says what became of each tensor, and returns the exit code.

    Raises:
        UserError: if the file is not one of those, or of other classes or another CLIP.
    """
    given = _convert_parser().parse_args(list(arguments))
    class_names = read_classes(given.classes)
    from fedvlp.clip import CLIPSpec
    from fedvlp.tools.hub.dassl import convert_dassl

    clip = CLIPSpec(given.clip_name, given.clip_pretrained)
    lines = convert_dassl(given.file, given.to, class_names, clip, given.class_position)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"written to {given.to / 'prompts.safetensors'}\n")
    return 0


def read_classes(path: Path) -> list[str]:
    """Returns the lines of a text file, without empty ones.

    Raises:
        UserError: if it can't be read, has no line, or has one twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as text ({error}). Pass a file with a class on each line.") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"Expected a class on each line of {path}, none of them twice; got {len(names)} lines.")
    return names


def _convert_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedvlp convert",
        description="Make a trained model of the prompts of CoOp, PromptFL or MaPLe in one of Dassl's checkpoints. "
        "Nothing in the file is run but PyTorch's own loading of tensors and optimizers.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="Such as prompt_learner/model.pth.tar-50.")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="Gets prompts.safetensors.")
    parser.add_argument(
        "--classes", type=Path, required=True, help="Text file: a class on each line, in the order of Dassl's labels."
    )
    parser.add_argument("--clip.name", dest="clip_name", default="ViT-B-16", help="The CLIP that it was trained with.")
    parser.add_argument(
        "--clip.pretrained", dest="clip_pretrained", default="auto", help="Its weights: a tag or a file."
    )
    parser.add_argument(
        "--class_position",
        choices=["end", "middle", "front"],
        default="end",
        help="CoOp's CLASS_TOKEN_POSITION, which the file does not say.",
    )
    return parser
