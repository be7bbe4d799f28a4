"""An entry's method, made and measured again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.metrics import all_scores
from fedvlp.federation import Federation
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.runs.descriptions import describe_data, describe_like, load_trained
from fedvlp.training.communication import COUNTS, communication_cost
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


def measured_again(command: FederationCLI, prompts: Path) -> dict[str, Any]:
    """The accuracies of the trained model and of its baseline, and what is measured beside them."""
    federation = cast(Federation, command.trainer)
    rows = {}
    deployed, personal = load_trained(prompts, command.model)
    # A method without phases is never trained, so its summary has the baseline's row alone.
    if command.model.configure_phases():
        rows[LAST_ROW] = (command.model, deployed, personal)
    baseline = command.model.baseline()
    if baseline is not None:
        baseline = federation.fabric.to_device(baseline)
        rows[ZERO_SHOT_ROW] = (baseline, baseline.shared_state(), {})
    found: dict[str, Any] = {"accuracy": {}, "metrics": {}, "balance": {}}
    for title, (model, shared, of_clients) in rows.items():
        found["accuracy"][title] = federation.evaluate(model, shared, of_clients)
        predictions = without_validation(federation.predictions)
        found["balance"][title] = federation.balance
        found["metrics"][title] = all_scores(predictions, federation.data.class_names)
    return found
