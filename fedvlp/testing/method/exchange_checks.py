"""What a method sends: what its phases name, nothing personal, and as much as is counted."""

from __future__ import annotations

from fedvlp.core.phases import check_phases
from fedvlp.core.state import State, matches_prefix, num_bytes, numel
from fedvlp.testing.failures import require
from fedvlp.testing.method.runs import MethodContract, federation_of
from fedvlp.training.communication import COUNTS


def only_what_a_phase_uploads_is_sent(contract: MethodContract) -> None:
    """Clients send what the phase names under upload, and nothing that the method calls personal."""
    model = contract.whole.run.model
    private = (*model.personal, *model.train_only_personal)
    uploads = {phase.name: phase.upload for phase in check_phases(model)}
    sent = contract.whole.sent
    require(bool(sent) == bool(uploads), f"{contract.name} has the phases {list(uploads)}; {len(sent)} uploads came.")
    for (_, _, phase), state in sent.items():
        where = f"{contract.name}: in phase {phase!r}"
        require(bool(state) == bool(uploads[phase]), f"{where} {uploads[phase]} is to be sent; {list(state)} was.")
        others = [name for name in state if not matches_prefix(uploads[phase], name)]
        require(not others, f"{where} {others} is sent, which its upload {uploads[phase]} does not name.")
        secret = [name for name in state if matches_prefix(private, name)]
        require(not secret, f"{where} {secret} is sent, though it is personal. Leave it out of the phase's upload.")


def communication_is_what_was_sent_and_what_cost_says(contract: MethodContract) -> None:
    """Of the client that sends most, over all phases; known before a run, and the same in every round.

    A pool of all images sends nothing, though the loop takes what it trained as it takes an upload.
    """
    whole = contract.whole
    clients = whole.run.datamodule.clients
    cost = whole.cost.rows(rounds=2)[-1]
    history = federation_of(whole.run).run_state.history
    for row in history:
        sent = _sent_in(contract, row["round"] - 1)
        for count in COUNTS:
            told = f"{contract.name}: `fedvlp cost` says {count} {cost[count]} a round, and round {row['round']} had "
            require(row[count] == cost[count], f"{told}{row[count]}. Upload the same tensors in every round.")
            if count in sent:
                require(row[count] == sent[count], f"{told}{sent[count]} in what was sent.")
    counted = sum(row["total_bytes"] for row in history) + cost["once_bytes"] * len(clients)
    expected = cost["total_bytes"]
    require(expected == counted, f"{contract.name}: `fedvlp cost` says {expected} bytes in all; {counted} were sent.")


def _sent_in(contract: MethodContract, number: int) -> dict[str, int]:
    """Returns what the client that sent most in a round sent, in parameters and in bytes."""
    is_pool = contract.whole.run.datamodule.clients[0].is_pool
    by_client: dict[int, list[State]] = {}
    for (at, client, _), state in contract.whole.sent.items():
        if at == number:
            by_client.setdefault(client, []).append({} if is_pool else state)
    return {
        "upload_parameters": max(sum(map(numel, states)) for states in by_client.values()),
        "upload_bytes": max(sum(map(num_bytes, states)) for states in by_client.values()),
    }
