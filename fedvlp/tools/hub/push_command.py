"""The command ``fedvlp push``: a finished run's model, with a card, to a hub or into a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.commands.trained_config import ALLOW_HELP


def run_push(arguments: Sequence[str]) -> int:
    """Pushes the model or writes its folder, says where it is, and returns the exit code.

    Raises:
        UserError: if it is no finished run, or the hub or the disk refuses.
    """
    given = _parser().parse_args(list(arguments))
    from fedvlp.pretrained.hub import check_repository
    from fedvlp.tools.hub.folder import write_folder
    from fedvlp.tools.hub.pushing import push_to_hub

    check_repository(given.repository)
    if given.output is not None:
        files = write_folder(given.run, given.output, given.repository, given.license, given.allow)
        sys.stdout.write("".join(f"{file}\n" for file in files))
        return 0
    options = {"private": given.private, "license": given.license, "allow": given.allow}
    sys.stdout.write(f"{push_to_hub(given.run, given.repository, **options)}\n")
    sys.stdout.write(f'Load it: fedvlp.from_pretrained("hf://{given.repository}")\n')
    return 0


def _parser() -> argparse.ArgumentParser:
    """Returns the command's arguments."""
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
