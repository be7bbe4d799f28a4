"""The server of a federation of real sites: the federation's own loop, whose clients are elsewhere."""

from __future__ import annotations

import logging
import secrets
import sys
from pathlib import Path
from typing import Any

from fedvlp.core.state import detached
from fedvlp.federation import Federation
from fedvlp.runs.run_folder import describe_model, find_checkpoints, run_name
from fedvlp.sites.building import Parts, build_parts
from fedvlp.sites.remote import SitesEngine
from fedvlp.sites.resident import starting_tensors
from fedvlp.sites.roster import Roster
from fedvlp.sites.run_file import SitesFile, read_sites_file
from fedvlp.sites.sites_data import SitesData, options_for_sites
from fedvlp.sites.transport import Transport
from fedvlp.sites.wire import Message
from fedvlp.training.add_ons import PUBLIC
from fedvlp.training.add_ons.base import describe_add_on
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)


def serve(config: Path, transport: Transport, run_dir: Path, ckpt_path: str | None = None) -> int:
    """Trains a method on the sites that a transport reaches, and writes the usual run folder.

    Args:
        config: a fedvlp config with ``model``, ``trainer`` and ``data``, the latter of ``fedvlp.sites.SitesData``,
            which lists the sites by name.
        transport: reaches the sites.
        run_dir: folder under which ``<name>/<time>`` becomes the run's folder.
        ckpt_path: go on from this checkpoint or run folder; ``last`` takes the newest run of the same name, and starts
            anew if there is none.

    Returns:
        The exit code: 0 if the run came to its end, 1 if not; what was wrong was then printed.
    """
    try:
        _serve(build_parts(config), transport, run_dir, ckpt_path)
    except UserError as error:
        sys.stderr.write(f"fedvlp: error: {error}\n")
        return 1
    return 0


def _serve(parts: Parts, transport: Transport, run_dir: Path, ckpt_path: str | None) -> None:
    federation = parts.federation
    data = parts.data
    if not isinstance(data, SitesData):
        raise UserError(f"Expected data of fedvlp.sites.SitesData, which lists the sites; got {type(data).__name__}.")
    _check_options(federation)
    federation.default_root_dir = run_dir
    known = read_sites_file(_run_to_continue(parts, run_dir, ckpt_path))
    data.facts = dict(known.facts)
    roster = Roster(transport, data, known.run or secrets.token_hex(8))
    roster.gather(federation.server.min_clients)
    federation.add_callback(SitesFile(roster, parts.config))
    federation.engine = SitesEngine(roster, _preparation(parts, data, roster.run), parts.model)
    if parts.model.personal and parts.model.unseen != "shared" and data.held_out:
        log.warning("The held-out domains are not measured: what the method keeps for each client is at the sites.")
    try:
        federation.fit(parts.model, data, ckpt_path)
    finally:
        roster.dismiss()


def _check_options(federation: Federation) -> None:
    """Refuses options that only a simulation has.

    Raises:
        UserError: if there is one.
    """
    asked = {
        "clients.attack": federation.clients.attack is not None,
        "clients.personal_on_disk": federation.clients.personal_on_disk,
        "devices": federation.fabric.world_size > 1,
        "local.gradient_clip_val": federation.local.gradient_clip_val is not None,
        "fast_dev_run": federation.fast_dev_run,
    }
    if wrong := [name for name, is_given in asked.items() if is_given]:
        raise UserError(f"Only a simulation has trainer.{wrong[0]}, since sites train each by itself. Leave it out.")
    for add_on in federation.local.every_add_on:
        if PUBLIC.get(type(add_on).__name__) is not type(add_on):
            raise UserError(
                f"Sites know the add-ons {', '.join(PUBLIC)}, and not {type(add_on).__name__}. Leave it out of "
                "trainer.local.add_ons."
            )


def _run_to_continue(parts: Parts, run_dir: Path, ckpt_path: str | None) -> Path | None:
    """Returns the folder of the run that is to go on; None if there is none."""
    if ckpt_path is None:
        return None
    where = Path(ckpt_path)
    if ckpt_path == "last":
        where = run_dir / (parts.federation.name or run_name(parts.model, parts.data))
    found = [where] if where.is_file() else find_checkpoints(where)
    return found[0].parent.parent if found else None


def _preparation(parts: Parts, data: SitesData, run: str) -> Message:
    """Returns the message that brings a site all that it needs of a run, but for its place."""
    federation = parts.federation
    described = describe_model(parts.model)
    model = {"class_path": described["class_path"], "init_args": {**described["init_args"], **_optimizer(parts)}}
    training = {
        "epochs": federation.local.epochs,
        "steps": federation.local.steps,
        "reset_optimizer": federation.local.reset_optimizer,
        "add_ons": [describe_add_on(add_on) for add_on in federation.local.every_add_on],
        "seed": federation.seed,
        "precision": federation.precision,
    }
    values = {
        "run": run,
        "data": options_for_sites(data),
        "model": model,
        "training": training,
        "fingerprint": described["clip_fingerprint"],
    }
    return Message("prepare", values, detached(starting_tensors(parts.model)))


def _optimizer(parts: Parts) -> dict[str, Any]:
    """Returns the config of the optimizer, which a method does not keep among its options."""
    optimizer = parts.options["model"]["init_args"].get("optimizer")
    return {} if optimizer is None else {"optimizer": optimizer}
