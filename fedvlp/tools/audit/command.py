"""The command ``fedvlp audit``: measures how much uploads and trained prompts reveal about clients' images."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.trained_config import parse_kinds, trained_config, trained_file
from fedvlp.tools.audit.audit import KINDS, audit, audit_table, write_audit
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.membership import MembershipOptions
from fedvlp.tools.trained_run_cli import TrainedRunCLI, load_run, parse
from fedvlp.utils.config_files import option_values, split_options
from fedvlp.utils.errors import UserError


class AuditCLI(TrainedRunCLI):
    """Parser that creates a method and its clients' data, without training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of this command."""
        super().add_arguments_to_parser(parser)
        help = f"Measures, separated by commas: {', '.join(KINDS)}; by default all that the method supports."
        parser.add_argument("--what", type=str | None, help=help)
        help = "Output folder; by default `audit` in the run's folder, or in the current folder without a run."
        parser.add_argument("--output", type=str | None, help=help)
        parser.add_class_arguments(InversionOptions, "inversion", instantiate=False)
        parser.add_class_arguments(MembershipOptions, "membership", instantiate=False)

    def before_instantiate_classes(self) -> None:
        """Check the options before loading anything, and disable augmentation."""
        super().before_instantiate_classes()
        config = self.config
        if config.output is not None and Path(config.output).is_file():
            raise UserError(f"Expected a folder for --output, but {config.output} is a file. Choose another path.")
        if "augmentation" in (config.data.get("init_args") or {}):
            config.data.init_args.augmentation = "none"


def run_audit(arguments: Sequence[str]) -> int:
    """Measure the requested kinds, write and print them, and return the exit code."""
    options = dict(split_options(arguments))
    # Without a trained file, --config describes an untrained method.
    trained = None
    if "--ckpt_path" in options and "--help" not in options:
        file = trained_file("".join(options["--ckpt_path"]), "audit")
        trained = trained_config(file, option_values(arguments, "--allow"), None if "--data" in options else "--data")
    command = parse(AuditCLI, arguments, trained, "Measure how much uploads and prompts reveal about clients' images.")
    config = command.config

    kinds = None if config.what is None else parse_kinds(config.what, KINDS)
    run = load_run(command)
    if run.module.has_several_labels:
        raise UserError("audit supports one label per image. The images of this run have several.")
    inversion = InversionOptions(**vars(config.inversion))
    membership = MembershipOptions(**vars(config.membership))
    folder = run.folder(config.output, "audit")
    facts, picture, skipped = audit(run, kinds, inversion, membership, config.trainer.seed)
    written = write_audit(folder, facts, picture)
    lines = [*skipped, audit_table(facts), "", *map(str, written)]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0
