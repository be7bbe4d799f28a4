"""``sites.json`` in a run's folder: which sites took part, and the name under which they keep what is theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedvlp.sites.fields import is_plain_name
from fedvlp.sites.roster import Roster
from fedvlp.sites.sites_data import SiteFacts
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json, write_text

FILE = "sites.json"


@dataclass(frozen=True)
class KnownSites:
    """What an earlier part of a run knew of its sites.

    Attributes:
        run: the run's id; empty if there was none.
        facts: what each site said of itself, by name.
    """

    run: str = ""
    facts: Mapping[str, SiteFacts] = field(default_factory=dict)


class SitesFile(FederationCallback):
    """Writes ``sites.json`` and the config into the run's folder.

    Args:
        roster: who is who.
        config: all options as YAML.
    """

    def __init__(self, roster: Roster, config: str) -> None:
        self.roster = roster
        self.config = config

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Writes both, before the first round counts on them."""
        run: RunView = trainer
        write_text(Path(run.log_dir) / "config.yaml", self.config)
        self._write(run)

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Writes the sites again, since some may have come in the round."""
        self._write(federation)

    def _write(self, run: RunView) -> None:
        facts = {name: asdict(each) for name, each in sorted(self.roster.data.facts.items())}
        write_json(Path(run.log_dir) / FILE, {"run": self.roster.run, "sites": facts})


def read_sites_file(run: Path | None) -> KnownSites:
    """Returns what a run knew of its sites.

    Args:
        run: its folder; None if there is no run to go on with.

    Raises:
        UserError: if the run has no such file, or one that nothing can be made of.
    """
    if run is None:
        return KnownSites()
    try:
        content = json.loads((run / FILE).read_text(encoding="utf-8"))
        facts = {
            name: SiteFacts(**{**each, "classes": tuple(each["classes"])}) for name, each in content["sites"].items()
        }
        if not is_plain_name(content["run"]):
            raise ValueError("no plain name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{run} is no run of sites that can go on: {FILE} in it is missing or damaged.") from error
    return KnownSites(content["run"], facts)
