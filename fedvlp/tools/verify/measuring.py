"""An entry's method, made and measured again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.metrics import all_scores
from fedvlp.core.roles import BASELINES
from fedvlp.federation import Federation
from fedvlp.results.record import LAST_ROW
from fedvlp.runs.descriptions import describe_data, describe_like, load_trained
from fedvlp.training.communication import COUNTS, communication_cost
from fedvlp.training.evaluation import baselines
from fedvlp.training.prediction import without_validation


def described(command: FederationCLI, claimed: Mapping[str, Any]) -> dict[str, Any]:
    """Describe method, training, data and communication as the summary must, which has ``claimed`` a method."""
    federation = cast(Federation, command.trainer)
    federation.prepare(command.model, command.datamodule)
    description = {**federation.description, **describe_data(command.datamodule)}
    description["model"] = describe_like(command.model, claimed)
    cost = communication_cost(command.model, command.datamodule.clients, federation.local.every_add_on)
    counts = cost.rows(rounds=1)[-1]
    trains = bool(command.model.configure_phases())
    sent = {name: counts[name] if trains else 0 for name in COUNTS}
    return {**description, "communication_per_client_and_round": sent}


def measured_again(command: FederationCLI, prompts: Path, titles: Collection[str]) -> dict[str, Any]:
    """Measure the trained model, and the baselines among some titles of rows, in all that a summary has of them."""
    federation = cast(Federation, command.trainer)
    rows = {}
    deployed, personal = load_trained(prompts, command.model)
    # A method without phases is never trained, so its summary has only the rows of baselines.
    if command.model.configure_phases():
        rows[LAST_ROW] = (command.model, deployed, personal)
    # A run may have been made without some of them, or by a version that had no class means.
    names = [name for name, title in BASELINES.items() if title in titles]
    for title, baseline in baselines(command.model, federation.data, federation.fabric, names).items():
        rows[title] = (baseline, baseline.shared_state(), {})
    found: dict[str, Any] = {"accuracy": {}, "metrics": {}, "balance": {}}
    for title, (model, shared, of_clients) in rows.items():
        found["accuracy"][title] = federation.evaluate(model, shared, of_clients)
        predictions = without_validation(federation.predictions)
        found["balance"][title] = federation.balance
        found["metrics"][title] = all_scores(predictions, federation.data.class_names)
    return found
