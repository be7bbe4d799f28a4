"""An entry's trained model, measured again, and where its summary differs."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import config_option
from fedvlp.core.metrics import all_scores
from fedvlp.core.roles import BASELINES
from fedvlp.federation import Federation
from fedvlp.results.record import BEST_ROW, LAST_ROW, load_record, row_of
from fedvlp.runs.descriptions import describe_data, load_trained
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.training.communication import COUNTS, communication_cost
from fedvlp.training.evaluation import baselines
from fedvlp.training.prediction import without_validation
from fedvlp.utils.config_files import read_run_config
from fedvlp.utils.errors import UserError, unwrapped_errors

FILES = ("summary.json", "prompts.safetensors", "config.yaml")
"""The files of an entry; a run's folder is one, and so is the folder that ``fedvlp push --output`` writes."""
OF_TRAINER = ("rounds", "seed", "precision", "deterministic", "evaluate_every", "local", "server", "clients")
"""Options of the trainer that determine a result. The others state where it ran and what it wrote."""
MEASURED = ("accuracy", "metrics", "balance")
"""Parts of a summary whose numbers depend on arithmetic with images, in percent or points."""
OF_TRAINING = ("rounds", "configs", "privacy", "seconds", "features", "versions", "plugins")
"""Parts of a summary that only the training knows."""


def verify(entry: Path, options: Sequence[str], tolerance: float, allow: Sequence[str]) -> str:
    """Measure an entry's model again, compare the summary, and return two lines on what was and was not verified.

    ``options`` replace those of the entry's config, ``tolerance`` is in points, and ``allow`` names classes that the
    entry may use besides fedvlp's own. Raises UserError if a file is missing or damaged, or the summary differs.
    """
    if missing := [name for name in FILES if not (entry / name).is_file()]:
        raise UserError(f"It lacks {missing[0]}. An entry is a folder of {', '.join(FILES)}, as a run writes them.")
    if (entry / "sites.json").is_file():
        command = f"fedvlp test --ckpt_path {entry / FILES[1]} --data DomainFolders --data.root IMAGES"
        raise UserError(f"It is of real sites, so its images are not here. Measure it on images of yours: {command}")
    record = load_record(entry)
    summary = json.loads((entry / "summary.json").read_text(encoding="utf-8"))
    words = [config_option(_config(entry / "config.yaml", allow)), *options]
    cli = FederationCLI.make(words, prog="fedvlp verify")
    if record.rounds > cli.config.trainer.rounds:
        raise UserError(f"Its summary says {record.rounds} rounds, and its config {cli.config.trainer.rounds}.")
    with unwrapped_errors():
        # The description comes first, since it costs seconds and the measurement minutes.
        claimed = {name: value for name, value in summary.items() if name not in (*MEASURED, *OF_TRAINING)}
        check_equal(claimed, _describe(cli), "It is of another split, method or config")
        claimed = {}
        for part in set(MEASURED).intersection(summary):  # the prompts of the best round are in another file
            claimed[part] = {title: row for title, row in summary[part].items() if row_of(title) != BEST_ROW}
        measured = _measure(cli, entry / "prompts.safetensors", claimed["accuracy"], record.rounds)
    reason = f"It is of another model, or a number was changed; --tolerance {tolerance:g} is what is allowed, in points"
    check_equal(claimed, {part: measured[part] for part in claimed}, reason, tolerance)
    unmeasured = [name for name in OF_TRAINING if name in summary]
    unmeasured += [f"the row {title!r}" for title in summary["accuracy"].keys() - claimed["accuracy"]]
    means = ", ".join(f"{role} {value:.2f} %" for role, value in record.last.items() if "/" not in role)
    return f"verified: {record.method}, {record.protocol}: {means}\n  not measured again: {', '.join(unmeasured)}\n"


def _config(path: Path, allow: Sequence[str]) -> dict[str, Any]:
    """An entry's config, without the options of the machine on which it was trained."""
    content = read_run_config(path, needs=("model", "data"))
    trainer = {name: value for name, value in content.get("trainer", {}).items() if name in OF_TRAINER}
    # A stranger's config decides neither where files are written nor whether any is downloaded.
    for name in ("cache_dir", "download"):
        (content["data"].get("init_args") or {}).pop(name, None)
    config: dict[str, Any] = {name: content[name] for name in ("seed_everything", "model", "data") if name in content}
    config["trainer"] = trainer | {"runtime": {"default_callbacks": False}, "enable_progress_bar": False}
    check_classes(path, config, allow)
    return config


def _describe(cli: FederationCLI) -> dict[str, Any]:
    """Describe method, training, data and communication as the summary must."""
    federation = cast(Federation, cli.trainer)
    federation.prepare(cli.model, cli.datamodule)
    cost = communication_cost(cli.model, cli.datamodule.clients, federation.options.local.all_add_ons)
    counts = cost.rows(rounds=1)[-1] if cli.model.configure_phases() else dict.fromkeys(COUNTS, 0)
    return {
        **federation.description,
        **describe_data(cli.datamodule),
        "communication_per_client_and_round": {name: counts[name] for name in COUNTS},
    }


def _measure(cli: FederationCLI, prompts: Path, titles: Collection[str], rounds: int) -> dict[str, Any]:
    """Measure the trained model, and those baselines that the summary has rows of."""
    federation = cast(Federation, cli.trainer)
    deployed, personal = load_trained(prompts, cli.model)
    # A method without phases only has the rows of baselines.
    rows = {LAST_ROW: (cli.model, deployed, personal)} if cli.model.configure_phases() else {}
    names = [name for name, title in BASELINES.items() if title in titles]
    for title, baseline in baselines(cli.model, federation.data, federation.fabric, names).items():
        rows[title] = (baseline, baseline.shared_state(), {})
    measured: dict[str, Any] = {part: {} for part in MEASURED}
    for row, (model, shared, of_clients) in rows.items():
        title = f"{LAST_ROW} ({rounds})" if row == LAST_ROW else row
        measured["accuracy"][title] = federation.evaluate(model, shared, of_clients)
        measured["balance"][row] = federation.balance
        measured["metrics"][row] = all_scores(without_validation(federation.predictions), federation.data.class_names)
    return measured


def check_equal(claimed: Mapping[str, Any], found: Mapping[str, Any], reason: str, tolerance: float = 0.0) -> None:
    """Raise UserError if values differ by more than ``tolerance``, with their paths in the summary and a reason."""
    claimed_values = dict(_flat(claimed))
    found_values = dict(_flat(json.loads(json.dumps(found))))  # as JSON returns them, lists for tuples
    lines = []
    for name in sorted(claimed_values.keys() | found_values.keys()):
        one, other = claimed_values.get(name), found_values.get(name)
        is_close = isinstance(one, float) and isinstance(other, float) and abs(one - other) <= tolerance
        if one != other and not is_close:
            lines.append(f"{name}: the summary says {json.dumps(one)[:80]}, found {json.dumps(other)[:80]}")
    if lines:
        raise UserError(f"{'; '.join(lines[:6])}. {reason}. Differences: {len(lines)}.")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its path, such as ``training.betas.0``; nothing for empty lists and mappings."""
    if isinstance(value, (list, Mapping)):
        for key, inner in dict(enumerate(value) if isinstance(value, list) else value).items():
            yield from _flat(inner, f"{name}.{key}".removeprefix("."))
    elif not f"{name}.".startswith(
        "model.init_args.clip."
    ):  # its digest identifies CLIP, wherever the weights came from
        yield name, value
