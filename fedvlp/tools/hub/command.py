"""The commands ``fedvlp convert`` and ``fedvlp push``. What needs PyTorch is imported after their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP


def run_convert(arguments: Sequence[str]) -> int:
    """Converts the file, prints what became of each tensor, and returns the exit code."""
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
    options = parser.parse_args(list(arguments))
    from fedvlp.clip import CLIPSpec
    from fedvlp.tools.hub.dassl import convert_dassl, read_classes

    clip = CLIPSpec(options.clip_name, options.clip_pretrained)
    lines = convert_dassl(options.file, options.to, read_classes(options.classes), clip, options.class_position)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"written to {options.to / 'prompts.safetensors'}\n")
    return 0


def run_push(arguments: Sequence[str]) -> int:
    """Pushes the model or writes its folder, prints its address, and returns the exit code."""
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
    options = parser.parse_args(list(arguments))
    from fedvlp.tools.hub.push import push_to_hub, write_folder
    from fedvlp.tools.pretrained.loading import check_repository

    repository = options.repository
    check_repository(repository)
    if options.output is not None:
        files = write_folder(options.run, options.output, repository, options.license, options.allow)
        sys.stdout.write("".join(f"{file}\n" for file in files))
        return 0
    address = push_to_hub(
        options.run, repository, private=options.private, license=options.license, allow=options.allow
    )
    sys.stdout.write(f'{address}\nLoad it: fedvlp.from_pretrained("hf://{repository}")\n')
    return 0
