"""The command ``fedvlp site``: the warm process of a site, to look at, start and stop."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvlp.sites.ask import site_status, start_site, stop_site


def run_site(arguments: Sequence[str]) -> int:
    """Starts, stops or shows the warm process of a site; returns the exit code: for ``status`` 1 if none runs.

    Raises:
        UserError: if the folder is no site's, or the process does not start.
    """
    parser = argparse.ArgumentParser(
        "fedvlp site",
        description="The warm process of a site keeps method, images and features between rounds. It starts by itself "
        "when the server first asks, and ends by itself when nobody has asked for a while.",
    )
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("home", type=Path, metavar="HOME", help="the site's folder, with site.yaml")
    options = parser.parse_args(arguments)
    if options.action == "start":
        start_site(options.home)
    if options.action == "stop":
        sys.stdout.write("stopped\n" if stop_site(options.home) else "there was none\n")
        return 0
    found = site_status(options.home)
    sys.stdout.write(", ".join(f"{name} {value}" for name, value in found.items()) + "\n")
    return 1 if found["state"] == "stopped" else 0
