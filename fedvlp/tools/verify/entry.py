"""Verification of a leaderboard entry: its model is evaluated again and compared with its summary."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import config_option
from fedvlp.core.metrics import all_scores
from fedvlp.core.roles import BASELINES
from fedvlp.results.record import BEST_ROW, LAST_ROW, load_record, row_name
from fedvlp.runs.descriptions import describe_data, load_trained
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.training.communication import COUNTS, communication_cost
from fedvlp.training.evaluation import baselines
from fedvlp.training.prediction import reported_predictions
from fedvlp.utils.config_files import read_run_config
from fedvlp.utils.errors import UserError, unwrapped_errors

FILES = ("summary.json", "prompts.safetensors", "config.yaml")
"""The files of an entry, which is a run's folder or the output of ``fedvlp push --output``."""
TRAINER_OPTIONS = (
    *("rounds", "seed", "precision", "deterministic", "evaluate_every", "select", "local", "server", "clients"),
)
"""Options of the trainer that determine a result. All others only concern the machine and the output."""
MEASURED = ("accuracy", "metrics", "balance")
"""Parts of a summary with numbers that are computed from images, in percent or points."""
UNVERIFIED = ("rounds", "configs", "privacy", "seconds", "features", "versions", "plugins")
"""Parts of a summary that only the training run can know."""


def verify(entry: Path, options: Sequence[str], tolerance: float, allow: Sequence[str]) -> str:
    """Evaluate an entry's model again, compare the summary, and return two lines about what was and was not verified.

    ``options`` override the entry's config, ``tolerance`` is in points, and ``allow`` names classes that the entry may
    use besides fedvlp's own. Raises a UserError if a file is missing or damaged, or the summary differs.
    """
    if missing := [name for name in FILES if not (entry / name).is_file()]:
        raise UserError(f"It lacks {missing[0]}. An entry is a folder with {', '.join(FILES)} of a run.")
    if (entry / "sites.json").is_file():
        command = f"fedvlp test --ckpt_path {entry / FILES[1]} --data DomainFolders --data.root IMAGES"
        raise UserError(f"It is a run of real sites, which keep their images. Evaluate it on your images: {command}")
    record = load_record(entry)
    summary = json.loads((entry / "summary.json").read_text(encoding="utf-8"))
    words = [config_option(_read_config(entry / "config.yaml", allow)), *options]
    cli = FederationCLI.make(words, prog="fedvlp verify")
    if record.rounds > cli.config.trainer.rounds:
        raise UserError(f"Its summary has {record.rounds} rounds, but its config {cli.config.trainer.rounds}.")
    with unwrapped_errors():
        # Compare descriptions first: they take seconds, the evaluation minutes.
        claimed = {name: value for name, value in summary.items() if name not in (*MEASURED, *UNVERIFIED)}
        check_equal(claimed, _describe(cli), "It has another split, method or config")
        claimed = {}
        for part in set(MEASURED).intersection(summary):  # except the best round, whose prompts are in another file
            claimed[part] = {title: row for title, row in summary[part].items() if row_name(title) != BEST_ROW}
        measured = _measure(cli, entry / "prompts.safetensors", claimed["accuracy"], record.rounds)
    reason = f"It has another model, or a number was changed; --tolerance allows differences of {tolerance:g} points"
    check_equal(claimed, {part: measured[part] for part in claimed}, reason, tolerance)
    unmeasured = [name for name in UNVERIFIED if name in summary]
    unmeasured += [f"the row {title!r}" for title in summary["accuracy"].keys() - claimed["accuracy"]]
    means = ", ".join(f"{role} {value:.2f} %" for role, value in record.last.items() if "/" not in role)
    return f"verified: {record.method}, {record.protocol}: {means}\n  not verified: {', '.join(unmeasured)}\n"


def _read_config(path: Path, allow: Sequence[str]) -> dict[str, Any]:
    """Read an entry's config without the options that concern the training machine."""
    content = read_run_config(path, needs=("model", "data"))
    trainer = {name: value for name, value in content.get("trainer", {}).items() if name in TRAINER_OPTIONS}
    # A foreign config must choose neither where files are written nor whether files are downloaded.
    for name in ("cache_dir", "download"):
        (content["data"].get("init_args") or {}).pop(name, None)
    config: dict[str, Any] = {name: content[name] for name in ("seed_everything", "model", "data") if name in content}
    config["trainer"] = trainer | {"runtime": {"default_callbacks": False}, "enable_progress_bar": False}
    check_classes(path, config, allow)
    return config


def _describe(cli: FederationCLI) -> dict[str, Any]:
    federation = cli.trainer
    federation.prepare(cli.model, cli.datamodule)
    cost = communication_cost(cli.model, cli.datamodule.clients, federation.options.local.all_add_ons)
    counts = cost.rows(rounds=1)[-1] if cli.model.configure_phases() else dict.fromkeys(COUNTS, 0)
    return {
        **federation.description,
        **describe_data(cli.model, cli.datamodule),
        "communication_per_client_and_round": {name: counts[name] for name in COUNTS},
    }


def _measure(cli: FederationCLI, prompts: Path, titles: Collection[str], rounds: int) -> dict[str, Any]:
    federation = cli.trainer
    deployed, personal = load_trained(prompts, cli.model)
    cli.model.calibration_temperature = 1.0  # as when the summary was written
    # A method without phases has only rows of baselines.
    rows = {LAST_ROW: (cli.model, deployed, personal)} if cli.model.configure_phases() else {}
    names = [name for name, title in BASELINES.items() if title in titles]
    for title, baseline in baselines(cli.model, federation.data, federation.fabric, names).items():
        rows[title] = (baseline, baseline.shared_state(), {})
    measured: dict[str, Any] = {part: {} for part in MEASURED}
    for row, (model, shared, personal_tensors) in rows.items():
        title = f"{LAST_ROW} ({rounds})" if row == LAST_ROW else row
        measured["accuracy"][title] = federation.evaluate(model, shared, personal_tensors)
        measured["balance"][row] = federation.balance
        predictions = reported_predictions(federation.predictions, federation.data)
        measured["metrics"][row] = all_scores(predictions, federation.data.class_names)
    return measured


def check_equal(claimed: Mapping[str, Any], found: Mapping[str, Any], reason: str, tolerance: float = 0.0) -> None:
    """Raise a UserError that names the values that differ by more than ``tolerance``, with a reason."""
    claimed_values = dict(_flatten(claimed))
    found_values = dict(_flatten(json.loads(json.dumps(found))))  # JSON turns tuples into lists
    lines = []
    for name in sorted(claimed_values.keys() | found_values.keys()):
        one, other = claimed_values.get(name), found_values.get(name)
        is_close = isinstance(one, float) and isinstance(other, float) and abs(one - other) <= tolerance
        if one != other and not is_close:
            lines.append(f"{name}: the summary has {json.dumps(one)[:80]}, found {json.dumps(other)[:80]}")
    if lines:
        raise UserError(f"{'; '.join(lines[:6])}. {reason}. Differences: {len(lines)}.")


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its path, such as ``training.betas.0``; nothing for empty lists and mappings."""
    if isinstance(value, (list, Mapping)):
        for key, inner in dict(enumerate(value) if isinstance(value, list) else value).items():
            yield from _flatten(inner, f"{name}.{key}".removeprefix("."))
    # The fingerprint identifies CLIP, wherever its weights came from.
    elif not f"{name}.".startswith("model.init_args.clip."):
        yield name, value
