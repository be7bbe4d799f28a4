"""What protocols report beside accuracies and means: harmonic means, the worst client, the spread over clients."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

HARMONIC = {"test_harmonic": ("local", "test", "test_new"), "held_out_harmonic": ("held_out", "held_out_new")}
"""Of which means each harmonic mean is taken, of those that were measured."""


def protocol_scores(by_role: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns what is computed of the accuracies of each role, in percent; nothing of roles that are not there.

    Harmonic means are those of base and new classes' mean accuracies, as CoCoOp's; with the clients' own classes beside
    them of all three, as FedTPG's. A spread is the population standard deviation over clients.

    >>> protocol_scores({"test": [60.0, 80.0], "test_new": [20.0, 40.0]})
    {'test_harmonic': 42.0}
    >>> protocol_scores({"personal": [50.0, 70.0]})
    {'personal_worst': 50.0, 'personal_spread': 10.0}
    """
    scores: dict[str, float] = {}
    for name, roles in HARMONIC.items():
        if roles[-1] in by_role:
            means = [sum(by_role[role]) / len(by_role[role]) for role in roles if role in by_role]
            scores[name] = statistics.harmonic_mean(means)
    for role in ("personal", "global"):
        if role in by_role:
            scores[f"{role}_worst"] = min(by_role[role])
            scores[f"{role}_spread"] = statistics.pstdev(by_role[role])
    return scores
