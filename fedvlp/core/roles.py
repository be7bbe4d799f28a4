"""Roles of evaluation splits and their summary columns, the baselines, and the mark of centralised training."""

from typing import Literal

# What images are measured for.
MeasuredRole = Literal[
    "validation", "test", "held_out", "test_new", "held_out_new", "transfer", "local", "personal", "global"
]

# Each role as metrics name it, and as a reader sees it.
ROLES: dict[str, str] = {
    "validation": "validation",
    "test": "test",
    "held_out": "held-out",
    "test_new": "new classes",
    "held_out_new": "held-out, new classes",
    "transfer": "other data sets",
    "local": "own classes",
    "personal": "own model",
    "global": "global model",
}

# How the names of splits begin whose images are of none of the classes, so that there is no accuracy.
OUT_OF_DISTRIBUTION = "out_of_distribution"

# Roles whose splits are named after clients, not domains.
OF_CLIENTS: tuple[MeasuredRole, ...] = ("local", "personal", "global")

# What is computed of several splits' accuracies beside their means, as metrics name it and as a reader sees it.
COMPUTED: dict[str, str] = {
    "test_harmonic": "harmonic mean",
    "held_out_harmonic": "held-out, harmonic mean",
    "personal_worst": "worst own model",
    "personal_spread": "spread of own models",
    "global_worst": "worst of the global model",
    "global_spread": "spread of the global model",
}

# What is measured on images on which no client trains and which choose nothing.
TESTED: tuple[str, ...] = tuple(role for role in (*ROLES, *COMPUTED) if role != "validation")

# The untrained classifiers that tables show next to a method: their names as options, and the titles of their rows.
BaselineName = Literal["zero_shot", "class_means"]
BASELINES: dict[str, str] = {"zero_shot": "zero-shot CLIP", "class_means": "class means"}

# Takes the place of the clients in every result of images in one place.
CENTRALISED = "centralised, not federated"


def role_title(role: str) -> str:
    """Returns what a reader calls a role.

    >>> role_title("held_out"), role_title("validation")
    ('held-out', 'source validation')
    """
    return "source validation" if role == "validation" else {**ROLES, **COMPUTED}[role]
