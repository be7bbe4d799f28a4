"""The command ``fedvlp verify``: whether a trained model gives the numbers that its summary claims."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import ALLOW_HELP, config_option
from fedvlp.core.metrics import all_scores
from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.federation import Federation
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW, load_record
from fedvlp.runs.run_folder import load_trained
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.tools.sweep.arguments import split_arguments
from fedvlp.tools.verify.verification import (
    contradictions,
    joined_contradictions,
    measured_contradictions,
    not_measured_again,
)
from fedvlp.training.communication import COUNTS, communication_cost
from fedvlp.training.prediction import without_validation
from fedvlp.utils.config_files import read_yaml, with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.ranges import NonNegativeFloat

FILES = ("summary.json", "prompts.safetensors", "config.yaml")
"""What an entry is; a run's folder is one, and so is what ``fedvlp push --output`` writes."""

OF_THE_MACHINE = (
    "accelerator",
    "devices",
    "num_nodes",
    "strategy",
    "logger",
    "callbacks",
    "default_root_dir",
    "name",
    "runtime",
)
"""Options of the trainer that say where it ran and what wrote about it, and change no result."""

NOT_OF_OTHERS = ("cache_dir", "download")
"""Options of data that a stranger's config does not decide: where files are written, and whether any is fetched."""

TOLERANCE = 0.01
"""In points; two machines that multiply in another order may predict other classes for a few images."""

Trained = tuple[State, Mapping[int, State]]
"""What all share, and what stays on each client."""

PARSER = {"prog": "fedvlp verify", "description": "Measure trained models again."}


def run_verify(arguments: Sequence[str]) -> int:
    """Measures each entry again, says of each what came of it, and returns the exit code.

    Returns:
        0 if all of them are verified, else 1.
    """
    own_arguments, of_config = split_arguments(arguments)
    options = _parser().parse_args(own_arguments)
    failed = 0
    for entry in chain.from_iterable(map(entries_of, options.entries)):
        try:
            lines = verify(entry, of_config, options.tolerance, options.allow)
        except UserError as error:
            failed += 1
            sys.stderr.write(f"fedvlp verify: {entry}: refused: {error}\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if failed else 0


def entries_of(path: Path) -> list[Path]:
    """Returns the entries below a folder of entries, at any depth; a path without entries is returned itself."""
    if (path / "summary.json").is_file():
        return [path]
    return sorted(summary.parent for summary in path.rglob("summary.json")) or [path]


def verify(
    entry: Path, of_config: Sequence[str] = (), tolerance: float = TOLERANCE, allow: Sequence[str] = ()
) -> list[str]:
    """Measures an entry's trained model again, and compares its summary in all that does not depend on training.

    Args:
        entry: folder with ``summary.json``, ``prompts.safetensors`` and ``config.yaml``.
        of_config: options in place of those of its config, such as ``--data.root``.
        tolerance: how far a measured number may be off, in points.
        allow: modules and paths of classes that the entry may name, besides fedvlp's own.

    Returns:
        What a reader wants to know, a line each.

    Raises:
        UserError: if a file is missing or damaged, or the summary differs from what was found.
    """
    for name in FILES:
        if not (entry / name).is_file():
            raise UserError(f"It lacks {name}. An entry is a folder of {', '.join(FILES)}, as a run writes them.")
    record = load_record(entry)
    command = _made(_config(entry / "config.yaml", allow), of_config)
    rounds = cast(Federation, command.trainer).rounds
    if record.rounds > rounds:
        raise UserError(f"Its summary says {record.rounds} rounds, and its config {rounds}.")
    summary = json.loads((entry / "summary.json").read_text(encoding="utf-8"))
    with unwrapped_errors():
        _refuse(contradictions(summary, _described(command)), "It is of another split, method or config")
        found = _measured(command, load_trained(entry / "prompts.safetensors", command.model))
    reason = f"It is of another model, or a number was changed; --tolerance {tolerance:g} is what is allowed, in points"
    _refuse(measured_contradictions(summary, found, tolerance), reason)
    row = found["accuracy"].get(LAST_ROW, found["accuracy"].get(ZERO_SHOT_ROW))
    accuracies = ", ".join(f"{role} {value:.2f} %" for role, value in row.items() if "/" not in role)
    left_out = ", ".join(not_measured_again(summary))
    return [f"{entry}: verified: {record.method}, {record.protocol}: {accuracies}", f"  not measured again: {left_out}"]


def _refuse(wrong: Sequence[str], reason: str) -> None:
    """Refuses an entry of which something is wrong.

    Raises:
        UserError: with what is, and the reason.
    """
    if wrong:
        raise UserError(f"{joined_contradictions(wrong)}. {reason}.")


def _config(path: Path, allow: Sequence[str]) -> dict[str, Any]:
    """Returns an entry's config, without what is of the machine on which it was trained.

    Raises:
        UserError: if it is no config, or names a class that is not allowed.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or not {"model", "data", "trainer"} <= content.keys():
        raise UserError(f"{path} is no config of a run: expected model, data and trainer in it.")
    trainer = content["trainer"]
    if not isinstance(trainer, dict):
        raise UserError(f"{path} is no config of a run: expected options of the trainer.")
    trainer = {name: value for name, value in trainer.items() if name not in OF_THE_MACHINE}
    if isinstance(trainer.get("clients"), dict):
        trainer["clients"].pop("personal_on_disk", None)
    trainer |= {"runtime": {"default_callbacks": False}, "enable_progress_bar": False}
    config = {name: content[name] for name in ("seed_everything", "model", "data") if name in content}
    config["trainer"] = trainer
    options = content["data"].get("init_args") if isinstance(content["data"], dict) else None
    if isinstance(options, dict):
        for name in NOT_OF_OTHERS:
            options.pop(name, None)
    check_classes(path, config, allow)
    return config


def _made(config: dict[str, Any], of_config: Sequence[str]) -> FederationCLI:
    """Returns method, data and federation of a config."""
    given = [config_option(config), *with_config_paths(of_config)]
    with unwrapped_errors():
        return FederationCLI(run=False, args=given, save_config_callback=None, parser_kwargs=PARSER)


def _described(command: FederationCLI) -> dict[str, Any]:
    """Returns what the summary must say of how was trained, on what and by whom, and of what is sent."""
    federation = cast(Federation, command.trainer)
    description = federation.describe(command.model, command.datamodule)
    cost = communication_cost(command.model, command.datamodule.clients, federation.local.every_add_on)
    counts = cost.rows(rounds=1)[-1]
    trains = bool(command.model.configure_phases())
    sent = {name: counts[name] if trains else 0 for name in COUNTS}
    return {**description, "communication_per_client_and_round": sent}


def _measured(command: FederationCLI, trained: Trained) -> dict[str, Any]:
    """Returns the accuracies of the trained model and of its baseline, and what is measured beside them."""
    federation = cast(Federation, command.trainer)
    rows = {}
    if command.model.configure_phases():
        rows[LAST_ROW] = _row(federation, command.model, *trained)
    baseline = command.model.baseline()
    if baseline is not None:
        baseline = federation.fabric.to_device(baseline)
        rows[ZERO_SHOT_ROW] = _row(federation, baseline, baseline.shared_state(), {})
    return {
        "accuracy": {title: accuracy for title, (accuracy, _) in rows.items()},
        "metrics": {title: metrics for title, (_, metrics) in rows.items()},
    }


def _row(
    federation: Federation, model: FederatedModule, deployed: State, personal: Mapping[int, State]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the accuracies of a model, and what is measured beside them."""
    accuracy = federation.evaluate(model, deployed, personal)
    predictions = without_validation(federation.predictions)
    return accuracy, all_scores(predictions, federation.data.class_names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedvlp verify",
        description="Measure trained models again, and refuse those whose summary says something else: of the model, "
        "the images, the split, the protocol, how was trained, what is sent, and every number of the last round and of "
        "zero-shot CLIP. All dotted options go to the configs, such as --data.root.",
    )
    parser.add_argument(
        "entries",
        nargs="+",
        type=Path,
        metavar="ENTRY",
        help=f"Folders of {', '.join(FILES)}, or folders of such folders.",
    )
    parser.add_argument(
        "--tolerance",
        type=NonNegativeFloat,
        default=TOLERANCE,
        help="How many points a measured number may be off; another processor may take a few images for something "
        "else. Default: %(default)s.",
    )
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    return parser
