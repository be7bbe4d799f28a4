"""The command ``fedvlp convert``: prompts in Dassl's checkpoints as a trained model of fedvlp."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.utils.errors import UserError


def run_convert(arguments: Sequence[str]) -> int:
    """Converts the file, says what became of each tensor, and returns the exit code.

    Raises:
        UserError: if the file is not one of those, or of other classes or another CLIP.
    """
    given = _parser().parse_args(list(arguments))
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


def _parser() -> argparse.ArgumentParser:
    """Returns the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="fedvlp convert",
        description="Make a trained model of the prompts of CoOp, PromptFL or MaPLe in one of Dassl's checkpoints. "
        "Nothing in the file is run: of its pickle only tensors and plain values are made.",
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
