"""Which options of a method a config does not repeat, since its data and its federation decide them."""

from __future__ import annotations

from typing import Any

LINKS = {
    "data.class_names": "model.init_args.class_names",
    "data.source_domains": "model.init_args.domains",
    "data.num_clients": "model.init_args.num_clients",
}
"""From what a data module knows to the option of a method that takes it, where the method has it."""


def link_method_options(parser: Any) -> None:
    """Lets a parser of the keys ``model``, ``data`` and ``trainer`` fill in what a method is told of the other two.

    Args:
        parser: jsonargparse's, or Lightning's.
    """
    for source, target in LINKS.items():
        parser.link_arguments(source, target, apply_on="instantiate")
    parser.link_arguments("trainer.rounds", "model.init_args.rounds")
