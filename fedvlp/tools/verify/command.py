"""The command ``fedvlp verify``: whether a trained model gives the numbers that its summary claims."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.commands.trained_config import ALLOW_HELP, config_option
from fedvlp.core.roles import BASELINES
from fedvlp.results.record import BEST_ROW, LAST_ROW, load_record, row_of
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.tools.sweep.command import split_arguments
from fedvlp.utils.config_files import read_run_config, with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.ranges import NonNegativeFloat

FILES = ("summary.json", "prompts.safetensors", "config.yaml")
"""What an entry is; a run's folder is one, and so is what ``fedvlp push --output`` writes."""
OF_TRAINER = (
    *("rounds", "seed", "precision", "deterministic", "evaluate_every"),
    *("local", "server", "clients"),
)
"""Options of the trainer that a result depends on; others say where it ran and what wrote about it."""
NOT_OF_OTHERS = ("cache_dir", "download")
"""Options of data that a stranger's config does not decide: where files are written, and whether any is downloaded."""
MEASURED = ("accuracy", "metrics", "balance")
"""Parts of a summary whose numbers depend on arithmetic with images, in percent or points."""
OF_TRAINING = ("rounds", "privacy", "seconds", "features", "versions", "plugins")
"""Parts of a summary that only the training itself can know."""
ROW = re.compile(rf"{'|'.join(BASELINES.values())}|({LAST_ROW}|{BEST_ROW}) \((?P<round>[0-9]+)\)")
"""The titles of a summary's accuracies."""
AGAIN = (*BASELINES.values(), LAST_ROW)
"""The rows that are measured again; the prompts of the best round are in another file."""
TOLERANCE = 0.01
"""In points; two machines that multiply in another order may predict other classes for a few images."""
MAX_LINES = 6
MAX_CHARACTERS = 80


def run_verify(arguments: Sequence[str]) -> int:
    """Measures each entry again, prints the outcomes, and returns the exit code: 0 if all are verified, else 1."""
    parser = argparse.ArgumentParser(
        prog="fedvlp verify",
        description="Measure trained models again, and refuse those whose summary says something else: of the model, "
        "the images, the split, the protocol, how was trained, what is sent, and every number of the last round and of "
        "the baselines. All dotted options go to the configs, such as --data.root.",
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
        help="How many points a measured number may be off; another processor may predict another class for a few "
        "images. Default: %(default)s.",
    )
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help=ALLOW_HELP)
    of_command, of_config = split_arguments(arguments)
    options = parser.parse_args(of_command)
    failed = 0
    for path in options.entries:
        # A path without entries is an entry that lacks its files.
        for entry in sorted(summary.parent for summary in path.rglob("summary.json")) or [path]:
            try:
                lines = verify(entry, of_config, options.tolerance, options.allow)
            except UserError as error:
                failed += 1
                sys.stderr.write(f"fedvlp verify: {entry}: refused: {error}\n")
            else:
                sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if failed else 0


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
    if (entry / "sites.json").is_file():
        of_others = f"fedvlp test --ckpt_path {entry / FILES[1]} --data DomainFolders --data.root IMAGES"
        raise UserError(f"It is of real sites, so its images are not here. Measure it on images of yours: {of_others}")
    record = load_record(entry)
    words = [config_option(_config(entry / "config.yaml", allow)), *with_config_paths(of_config)]
    # They make the method, so they need PyTorch.
    from fedvlp.commands.lightning_cli import FederationCLI
    from fedvlp.tools.verify.measuring import described, measured_again

    command = FederationCLI.make(words, "Its config can't be used", prog="fedvlp verify")
    rounds = command.config.trainer.rounds
    if record.rounds > rounds:
        raise UserError(f"Its summary says {record.rounds} rounds, and its config {rounds}.")
    summary = json.loads((entry / "summary.json").read_text(encoding="utf-8"))
    with unwrapped_errors():
        # First what needs no image to be classified, since that costs seconds and the rest minutes.
        found = described(command, summary["model"])
        _refuse(contradictions(summary, found), "It is of another split, method or config")
        measured = measured_again(command, entry / "prompts.safetensors", summary["accuracy"])
    reason = f"It is of another model, or a number was changed; --tolerance {tolerance:g} is what is allowed, in points"
    _refuse(measured_contradictions(summary, measured, tolerance), reason)
    accuracies = ", ".join(f"{role} {value:.2f} %" for role, value in record.last.items() if "/" not in role)
    left_out = ", ".join(not_measured_again(summary))
    return [f"{entry}: verified: {record.method}, {record.protocol}: {accuracies}", f"  not measured again: {left_out}"]


def _refuse(wrong: Sequence[str], reason: str) -> None:
    if wrong:
        more = [f"and {len(wrong) - MAX_LINES} more"] if len(wrong) > MAX_LINES else []
        raise UserError(f"{'; '.join([*wrong[:MAX_LINES], *more])}. {reason}.")


def _config(path: Path, allow: Sequence[str]) -> dict[str, Any]:
    """An entry's config, without what is of the machine on which it was trained."""
    content = read_run_config(path, needs=("model", "data"))
    config: dict[str, Any] = {name: content[name] for name in ("seed_everything", "model", "data") if name in content}
    trainer = {name: value for name, value in content.get("trainer", {}).items() if name in OF_TRAINER}
    if isinstance(trainer.get("clients"), dict):
        trainer["clients"].pop("personal_on_disk", None)
    # Nothing is written: the entry is someone else's, and its folder must not change.
    config["trainer"] = trainer | {"runtime": {"default_callbacks": False}, "enable_progress_bar": False}
    for name in NOT_OF_OTHERS:
        (content["data"].get("init_args") or {}).pop(name, None)
    check_classes(path, config, allow)
    return config


def contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Lists where a summary differs from what method, data and config make of a run, a line each.

    ``found`` is what it must hold, except for ``MEASURED`` and ``OF_TRAINING``.
    """
    checked = {name: value for name, value in claimed.items() if name not in (*MEASURED, *OF_TRAINING)}
    lines = _differences(_without_clip(checked), _without_clip(found), 0.0)
    # A summary may also contradict itself: a round with two results, or a last round that is not the last.
    rows_by_round: dict[str, tuple[str, Any]] = {}
    for title, row in claimed["accuracy"].items():
        match = ROW.fullmatch(title)
        if match is None:
            lines.append(f"accuracy.{title}: a summary has no such row")
        elif match["round"] is not None:
            if title.startswith(LAST_ROW) and match["round"] != str(claimed["rounds"]):
                lines.append(f"accuracy.{title}: the summary says rounds {claimed['rounds']}")
            first_title, first_row = rows_by_round.setdefault(match["round"], (title, row))
            if first_row != row:
                lines.append(
                    f"accuracy.{title}: the summary says something else of the same round under {first_title!r}"
                )
    return lines


def measured_contradictions(claimed: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """Lists where a summary is more than ``tolerance`` points off the numbers that were measured, a line each.

    These are ``accuracy``, ``metrics`` and ``balance`` of the last round and of the baselines.
    """
    # Runs at sites have no metrics, since sites do not report predictions of single images.
    parts = [name for name in MEASURED if name in claimed]
    rows: dict[str, Any] = {}
    for part in parts:
        rows[part] = {row_of(title): row for title, row in claimed[part].items() if row_of(title) in AGAIN}
    return _differences(rows, {name: found[name] for name in parts}, tolerance)


def not_measured_again(claimed: Mapping[str, Any]) -> list[str]:
    """The parts of a summary that only its training can know."""
    parts = [name for name in OF_TRAINING if name in claimed]
    rows = [title for title in claimed.get("accuracy", {}) if row_of(title) not in AGAIN]
    return [*parts, *(f"the row {title!r}" for title in rows)]


def _without_clip(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out where CLIP's weights came from: their digest identifies them."""
    init_args = {name: value for name, value in summary["model"]["init_args"].items() if name != "clip"}
    return {**summary, "model": {**summary["model"], "init_args": init_args}}


def _differences(claimed: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> list[str]:
    """A line for each value that differs, sorted by its path in the summary."""
    # A summary was read from JSON, so the values that were found must be as JSON returns them, lists for tuples.
    claimed_values = dict(_flat(claimed))
    found_values = dict(_flat(json.loads(json.dumps(found))))
    lines = []
    for name in sorted(claimed_values.keys() | found_values.keys()):
        one, other = claimed_values.get(name), found_values.get(name)
        if not _are_close(one, other, tolerance):
            lines.append(f"{name}: the summary says {_short(one)}, found {_short(other)}")
    return lines


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value with its path, such as ``training.betas[0]``; nothing of empty lists and mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]")
    else:
        yield name, value


def _are_close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values are equal, or numbers within the tolerance; only NaN is close to NaN."""
    are_numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (one, other))
    if not are_numbers:
        return bool(one == other)
    return abs(one - other) <= tolerance or (math.isnan(one) and math.isnan(other))


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = f"{value:.10g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
