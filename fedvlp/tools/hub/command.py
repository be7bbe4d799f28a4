"""The command ``fedvlp push``. It imports modules that need PyTorch after parsing its options."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP


def run_push(arguments: Sequence[str]) -> int:
    """Push the model or write its folder, print its address, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fedvlp push",
        description="Publish a finished run's model on the Hugging Face hub: prompts.safetensors, a model card, the "
        "run's config without local folders, and its summary. Neither CLIP nor images are uploaded.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="Folder of a run, or of several runs (the newest).")
    parser.add_argument("repository", metavar="USER/NAME", help="The repository; it is created if it does not exist.")
    parser.add_argument("--private", action="store_true", help="Make the repository visible only to its owner.")
    parser.add_argument("--license", default="unknown", help="Licence of the learned tensors, such as apache-2.0.")
    parser.add_argument("-o", "--output", type=Path, help="Write the files into this new folder instead of pushing.")
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
