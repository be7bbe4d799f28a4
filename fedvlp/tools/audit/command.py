"""The command ``fedvlp audit``: what a client's upload, and the trained prompts, tell of its images."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import (
    ALLOW_HELP,
    chosen_kinds,
    config_option,
    data_of_run,
    first_look,
    trained_config,
    trained_file,
)
from fedvlp.core.state import State
from fedvlp.data.without_images import PlaceholderData, PredictionData
from fedvlp.federation import Federation
from fedvlp.runs.run_folder import load_trained, run_of
from fedvlp.tools.audit import (
    AUDITS,
    AuditedMethod,
    AuditRequest,
    InversionOptions,
    MembershipOptions,
    audit,
    audit_table,
    write_audit,
)
from fedvlp.tools.audit.images import images_of_run
from fedvlp.training.setup import set_up_data, set_up_method
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors

FOLDER = "audit"
HELP = {
    "ckpt_path": "A run's folder, its prompts.safetensors or one of its checkpoints; an untrained method if not given.",
    "what": f"What to measure, with commas between: {', '.join(AUDITS)}; all that the method allows if not given.",
    "output": "Folder to write to; audit in the run's folder if not given, or in this folder without a run.",
    "allow": ALLOW_HELP,
}
OPTIONS = {"inversion": InversionOptions, "membership": MembershipOptions}
PARSER = {"prog": "fedvlp audit", "description": "Measure what a client's upload tells of its images."}


class AuditCLI(FederationCLI):
    """Makes a method, trained or not, and the data of its clients; nothing is trained."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what this command takes."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--ckpt_path", type=str | None, help=HELP["ckpt_path"])
        parser.add_argument("--what", type=str | None, help=HELP["what"])
        parser.add_argument("--output", type=str | None, help=HELP["output"])
        parser.add_argument("--allow", action="append", metavar="NAME", help=HELP["allow"])
        for key, options in OPTIONS.items():
            parser.add_class_arguments(options, key, instantiate=False)

    def before_instantiate_classes(self) -> None:
        """Refuses what is out of range, and leaves out what writes about runs."""
        config = self.config
        for key, options in OPTIONS.items():
            options(**vars(config[key]))  # refuses what does not go together
        _check_folder(config.output)
        config.trainer.logger = None
        config.trainer.callbacks = None
        config.trainer.runtime.default_callbacks = False
        # The images themselves are looked at, not what a pass over them makes of them.
        if "augmentation" in (config.data.get("init_args") or {}):
            config.data.init_args.augmentation = "none"


def run_audit(arguments: Sequence[str]) -> int:
    """Measures what was asked for, writes it, and prints it in short; returns the exit code.

    Raises:
        UserError: if a trained file is damaged or not allowed, or there is nothing to measure.
    """
    given = with_config_paths(arguments)
    trained = _config(given)
    if trained is not None:
        given.insert(0, config_option(trained))
    with unwrapped_errors():
        command = AuditCLI(run=False, args=given, save_config_callback=None, parser_kwargs=PARSER)
        lines = run(command)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def run(command: AuditCLI) -> list[str]:
    """Writes the audit, and returns what there is to say of it."""
    config = command.config
    request = AuditRequest(
        kinds=_kinds(config.what),
        inversion=InversionOptions(**vars(config.inversion)),
        membership=MembershipOptions(**vars(config.membership)),
        seed=config.trainer.seed,
    )
    where = None if config.ckpt_path is None else trained_file(config.ckpt_path, "audit")
    found = audit(_method(command, where), request)
    run_folder = Path() if where is None else run_of(where)
    folder = Path(config.output) if config.output else run_folder / FOLDER
    written = write_audit(folder, found)
    return [*found.left_out, audit_table(found.facts), "", *map(str, written)]


def _config(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Returns the config of the trained method with its run's data; None for help, or for an untrained method."""
    given = first_look(arguments)
    if given.help or given.ckpt_path is None:
        return None
    where = trained_file(given.ckpt_path, "audit")
    config = trained_config(where, given.allow)
    run = run_of(where) / "config.yaml"
    if run.is_file() and _kinds(given.what) != ["words"]:
        config["data"] = data_of_run(run, "--what words", given.allow)
    return config


def _kinds(what: str | None) -> list[str] | None:
    return None if what is None else chosen_kinds(what, AUDITS)


def _check_folder(output: str | None) -> None:
    """Refuses to write into what is no folder, before anything is measured."""
    if output is not None and Path(output).exists() and not Path(output).is_dir():
        raise UserError(f"Expected --output to be a folder; {output} is a file.")


def _method(command: AuditCLI, where: Path | None) -> AuditedMethod:
    """Returns the method with its tensors, and the images of its clients where there are any."""
    module = command.model
    data = command.datamodule
    federation = cast(Federation, command.trainer)
    set_up_method(federation.fabric, module, federation.runtime.num_threads)
    deployed: State = module.shared_state()
    kept: Mapping[int, State] = {}
    if where is not None:
        deployed, kept = load_trained(where, module)
    if isinstance(data, (PredictionData, PlaceholderData)):
        return AuditedMethod(module, deployed, kept, None, where is not None)
    set_up_data(federation.fabric, module, data, federation.precision, serves_images=True)
    # A client that never took part has what it would begin with.
    start = module.personal_state()
    personal = {client.id: kept.get(client.id) or start for client in data.clients}
    return AuditedMethod(module, deployed, personal, images_of_run(data), where is not None)
