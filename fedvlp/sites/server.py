"""The server of a federation of real sites: the usual training loop with remote clients."""

import json
import logging
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import bind_aggregators, client_noise
from fedvlp.core.state import detached, num_bytes, select
from fedvlp.federation import Federation
from fedvlp.runs.descriptions import describe_model, run_name
from fedvlp.runs.run_folder import WAITING, find_checkpoints
from fedvlp.sites.data import SitesData, options_for_sites
from fedvlp.sites.engine import SitesEngine
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.wire import Message, SiteFacts, Transport
from fedvlp.sites.worker import starting_tensors
from fedvlp.training.add_ons import PUBLIC
from fedvlp.training.callback import FederationCallback, RunView
from fedvlp.training.options import Clients, Server
from fedvlp.utils.config_files import CONFIG_OPTION
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json, write_text

SITES_FILE = "sites.json"  # in the run's folder: the sites' descriptions, and the run id that names their files
SIGNATURE = "signature.json"  # next to an app's config: the signature of the run's description, in hexadecimal digits
log = logging.getLogger(__name__)


def serve(config: Path, transport: Transport, run_dir: Path, ckpt_path: str | None = None) -> int:
    """Train a method on the sites that a transport reaches, and write the usual run folder.

    Args:
        config: A config of ``model``, ``trainer`` and ``data``, which must be ``fedvlp.sites.data.SitesData``.
        transport: Connection to the sites.
        run_dir: Parent of the run's folder ``<name>/<time>``.
        ckpt_path: Resume from this checkpoint or run folder; ``last`` takes the newest run of the same name, and starts
            from scratch if there is none.

    Returns:
        The exit code: 0 on success, otherwise 1 after printing the error.
    """
    try:
        command = read_app(config)
        signature = config.with_name(SIGNATURE)
        signed = signature.read_text(encoding="utf-8").strip() if signature.is_file() else ""
        _serve(command, {**describe_for_sites(command), "signature": signed}, transport, run_dir, ckpt_path)
    except UserError as error:
        sys.stderr.write(f"fedvlp: error: {error}\n")
        return 1
    return 0


def read_app(config: Path) -> FederationCLI:
    """Parse the config of a federation of sites, or raise a UserError if it is not one."""
    command = FederationCLI.make([f"{CONFIG_OPTION}{config}"], prog="fedvlp")
    if not isinstance(command.datamodule, SitesData):
        name = command.datamodule.name
        raise UserError(f"Expected data of fedvlp.sites.data.SitesData, which lists the sites; got {name}.")
    _check_options(command.trainer, command.model)
    return command


def _serve(
    command: FederationCLI, description: Mapping[str, Any], transport: Transport, run_dir: Path, ckpt_path: str | None
) -> None:
    federation = command.trainer
    data = cast(SitesData, command.datamodule)
    federation.default_root_dir = run_dir
    run = secrets.token_hex(8)
    resumed = _run_to_resume(command, run_dir, ckpt_path)
    if resumed is not None:
        # The sites find their files by the old id.
        run, data.facts = read_sites_file(resumed)
    run_dir.mkdir(parents=True, exist_ok=True)  # also for large replies
    registry = SiteRegistry(transport, data, run, description, run_dir / WAITING)
    registry.gather(federation.options.server.min_clients)
    config = command.parser.dump(command.config, skip_unset=False)
    # The class means would have to leave the sites, which no site has agreed to.
    federation.baselines = [name for name in federation.baselines if name != "class_means"]
    federation.add_callback(SitesFile(registry, config))
    preparation = Message("prepare", {"run": run, **description}, detached(starting_tensors(command.model)))
    engine = federation.engine = SitesEngine(registry, preparation, command.model)
    if command.model.personal and command.model.held_out_evaluation != "shared" and data.held_out:
        log.warning("The held-out domains are not evaluated: the method's personal tensors are at the sites.")
    try:
        engine.prepare()
        federation.fit(command.model, data, ckpt_path)
    finally:
        registry.dismiss()


def _check_options(federation: Federation, model: FederatedModule) -> None:
    simulation_options = {
        "clients.attack": federation.options.clients.attack is not None,
        "clients.personal_on_disk": federation.options.clients.personal_on_disk,
        "devices": federation.fabric.world_size > 1,
        "local.gradient_clip_val": federation.options.local.gradient_clip_val is not None,
        "fast_dev_run": federation.fast_dev_run,
    }
    if model.needs_test_images:
        raise UserError(f"{type(model).__name__} adapts to test images, which sites do not support. Use a simulation.")
    if wrong := [name for name, is_given in simulation_options.items() if is_given]:
        raise UserError(f"Only simulations support trainer.{wrong[0]}, because each site trains on its own. Remove it.")
    for add_on in federation.options.local.all_add_ons:
        name = type(add_on).__name__
        if PUBLIC.get(name) is not type(add_on):
            supported = ", ".join(PUBLIC)
            raise UserError(f"Sites support the add-ons {supported}, not {name}. Remove it from trainer.local.add_ons.")


def _run_to_resume(command: FederationCLI, run_dir: Path, ckpt_path: str | None) -> Path | None:
    if ckpt_path is None:
        return None
    # The federation will choose the same checkpoint.
    path = Path(ckpt_path)
    if ckpt_path == "last":
        path = run_dir / (command.trainer.name or run_name(command.model, command.datamodule))
    checkpoints = [path] if path.is_file() else find_checkpoints(path)
    return checkpoints[0].parent.parent if checkpoints else None


def describe_for_sites(command: FederationCLI) -> dict[str, Any]:
    """Describe a run by the fields of ``wire.Description``, with an empty signature; deterministic for each config."""
    federation = command.trainer
    data = cast(SitesData, command.datamodule)
    described = describe_model(command.model)
    init_args = dict(described["init_args"])
    # A method does not store the config of its optimizer among its options.
    optimizer = command.config.as_dict()["model"]["init_args"].get("optimizer")
    if optimizer is not None:
        init_args["optimizer"] = optimizer
    options = federation.options
    # Only the server needs schedule, cohort and aggregation; it sends each client its learning rate.
    for_sites = replace(options, local=replace(options.local, schedule=None), server=Server(), clients=Clients())
    phases, cohort_size = check_phases(command.model), options.clients.cohort_size
    phases = bind_aggregators(phases, options.server.aggregation, data.clients, cohort_size, options.seed)
    noise = next(filter(None, (client_noise(phase.strategy) for phase in phases)), None)
    return {
        "data": options_for_sites(data),
        "model": {"class_path": described["class_path"], "init_args": init_args},
        "training": for_sites.describe(),
        "fingerprint": described["clip_fingerprint"],
        "rounds": options.rounds,
        "noise": None if noise is None else asdict(noise),
        "sites": data.sites,
        "signature": "",
    }


def read_sites_file(run: Path) -> tuple[str, dict[str, SiteFacts]]:
    """Read a run's id and the sites' descriptions by name from the run's folder."""
    try:
        content = json.loads((run / SITES_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{run} is not a run of sites: it has no {SITES_FILE}. Resume a run of sites.") from error
    return content["run"], {name: SiteFacts(**values) for name, values in content["sites"].items()}


class SitesFile(FederationCallback):
    """Callback that writes ``sites.json`` and the config, as YAML, into the run's folder."""

    def __init__(self, registry: SiteRegistry, config: str) -> None:
        self.registry = registry
        self.config = config

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Write both files before the first round."""
        write_text(Path(trainer.log_dir) / "config.yaml", self.config)
        self.on_round_end(trainer, {})
        for phase in trainer.phases:
            size = len(self.registry.data.sites) * num_bytes(select(pl_module.shared_state(), phase.upload))
            for reducer in phase.strategy.reducers:
                if not reducer.aggregator.is_linear:
                    name = type(reducer.aggregator).__name__
                    log.warning("%s needs all updates in memory at once: %s bytes.", name, f"{size:,}")

    def on_round_end(self, federation: RunView, row: dict[str, Any]) -> None:
        """Write the sites again, because some may have connected during the round."""
        sites = {name: facts.model_dump() for name, facts in sorted(self.registry.data.facts.items())}
        write_json(Path(federation.log_dir) / SITES_FILE, {"run": self.registry.run, "sites": sites})
