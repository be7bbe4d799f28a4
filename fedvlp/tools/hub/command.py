"""The command ``fedvlp push``. What needs PyTorch is imported after its options."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP


def run_push(arguments: Sequence[str]) -> int:
    """Push the model or write its folder, print its address, and return the exit code."""
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

    repository = options.repository
    shared = {"license": options.license, "allow": options.allow}
    if options.output is not None:
        lines = [*map(str, write_folder(options.run, options.output, repository, **shared))]
    else:
        address = push_to_hub(options.run, repository, private=options.private, **shared)
        lines = [address, f'Load it: fedvlp.from_pretrained("hf://{repository}")']
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0
