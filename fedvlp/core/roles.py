"""Roles of evaluation splits, and what a result says that nobody federated."""

ROLES = {"validation": "validation", "test": "test", "held_out": "held-out"}
"""Each role as metrics name it, and as a reader sees it."""

OUT_OF_DISTRIBUTION = "out_of_distribution"
"""How the names of splits begin whose images are of none of the classes, so that there is no accuracy."""

CENTRALISED = "centralised, not federated"
"""What stands in place of the clients in every result of images that lay in one place."""
