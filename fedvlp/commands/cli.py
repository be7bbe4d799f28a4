"""The command line, ``fedvlp fit|validate|test|predict|diagnose|cost|...``: LightningCLI around the federation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from fedvlp.utils.errors import UserError
from fedvlp.version import __version__

USAGE = """\
usage: fedvlp [-h] [--version] {fit,validate,test,predict,diagnose,explain,cost,data,compare,sweep,report} ...

Federated prompt learning of vision-language models.

commands:
  fit         Train a method on all source clients and report every domain's accuracy.
  validate    Measure a trained method on the source validation splits.
  test        Measure a trained method on held-out domains and test splits.
  predict     Classify images with a trained method and write a CSV.
  diagnose    Look inside a method on every domain's images, such as at TRIP's routes.
  explain     Show what a trained method does: where it looks, its experts, its prompts' nearest words.
  cost        Print what a method sends, without training; with several configs of methods, compare them.
  data        List the field's data sets, or compare images on disk with what was published.
  compare     Put finished runs into tables, with the papers' printed numbers beside them.
  sweep       Make the runs of several methods, held-out domains and seeds; called again, go on with what is missing.
  report      Write one HTML page of finished runs: tables, figures, configs, versions.

What trains or loads a method takes one or more --config (a file, or the name of a
config that is bundled, such as quickstart), and dotted overrides of any of its keys:

  fedvlp fit --config quickstart
  fedvlp fit --config methods/trip --config data/folders --data.root photos --data.held_out sketch
  fedvlp fit --config quickstart --print_config
  fedvlp predict --ckpt_path runs/NAME/TIME/prompts.safetensors --images photos/new
  fedvlp cost --config trip --config promptfl --data.classes 65 --data.domains 3

The others have options of their own, which --help explains:

  fedvlp sweep --config data/styled_shapes --models trip,promptfl --seeds 0,1,2 --output runs/first
  fedvlp compare runs/first
  fedvlp report runs/first --output report.html

options:
  -h, --help  Show this message; `fedvlp fit --help` explains every argument.
  --version   Show the version.
"""

WITHOUT_METHODS = {
    "compare": ("fedvlp.commands.compare", "print_tables"),
    "data": ("fedvlp.commands.data", "run_data"),
    "report": ("fedvlp.commands.report", "write_report"),
    "sweep": ("fedvlp.commands.sweep", "sweep"),
}
"""Commands without LightningCLI: the functions that take their other arguments and return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 only on success, 1 for bad input, 2 for a bad command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if given else 2
    if given[0] == "--version":
        sys.stdout.write(f"fedvlp {__version__}\n")
        return 0
    try:
        if given[0] in WITHOUT_METHODS:
            module, function = WITHOUT_METHODS[given[0]]
            return int(getattr(import_module(module), function)(given[1:]))
        from fedvlp.commands.lightning_cli import run

        run(given)
    except UserError as error:
        sys.stderr.write(f"fedvlp: error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; go on with --ckpt_path last\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
