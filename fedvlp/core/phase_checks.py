"""The phases of a method, checked before a round is run."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlp.core.module import FederatedModule, Phase
from fedvlp.core.state import matches_prefix
from fedvlp.utils.errors import UserError


def check_phases(module: FederatedModule) -> Sequence[Phase]:
    """Returns the module's phases.

    Raises:
        UserError: if a phase names a tensor that does not exist, or trains one that it neither uploads nor keeps and
            that would thus leak from one simulated client to the next.
    """
    phases = tuple(module.configure_phases())
    method = type(module).__name__
    names = [*module.state_dict(), *(name for name, _ in module.named_parameters())]
    for phase in phases:
        for prefix in (*phase.train, *phase.upload, *module.personal, *module.train_only_personal):
            if not any(matches_prefix((prefix,), name) for name in names):
                raise UserError(f"Phase {phase.name!r} of {method} names {prefix!r}, but no tensor is called so.")
        for name, _ in module.named_parameters():
            if matches_prefix(phase.train, name) and not matches_prefix(
                (*phase.upload, *module.personal, *module.train_only_personal), name
            ):
                raise UserError(
                    f"{method} trains {name!r} in phase {phase.name!r} but neither uploads nor keeps it, so it would "
                    "leak from one client to the next. Add it to the phase's upload or to `personal`."
                )
    return phases
