"""What a site keeps warm for a run: the method, its images and what was computed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvlp.core.aggregation.base import ClientNoise
from fedvlp.core.module import FederatedModule, copy_state
from fedvlp.core.phases import check_phases
from fedvlp.core.state import Client, RunState, ServerState, State, select
from fedvlp.core.strategies import FedAvg
from fedvlp.runs.client_store import StatesOnDisk
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.sites.building import build_method
from fedvlp.sites.site_config import SiteConfig
from fedvlp.sites.site_data import SiteFolder
from fedvlp.sites.site_errors import SiteProblem
from fedvlp.sites.site_store import SiteStore
from fedvlp.sites.wire import Message
from fedvlp.training.add_ons import PUBLIC, AddOn
from fedvlp.training.add_ons.base import NoisyUpload
from fedvlp.training.client import ClientError, ClientResult, Workspace, train_clients
from fedvlp.training.evaluation import split_predictions
from fedvlp.training.lightning_hooks import Hooks
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.setup import make_fabric, set_up_data, set_up_method
from fedvlp.training.task import PhaseTask, set_up_phases, validation_splits
from fedvlp.utils.errors import UserError


class SiteTask(PhaseTask):
    """A phase as a site is asked to train it: what it downloads has come with the request."""

    def download(self, client: Client) -> State:
        """What came."""
        return self.state.server.shared


class Resident:
    """One run at one site: trains and measures its one client as a simulation does.

    Args:
        config: what the site decides for itself.
        data: the site's images, under the client's id.
        request: of the kind ``prepare``.
        folder: where the run keeps what stays on the client.

    Raises:
        SiteProblem: if the method can't be made here, or is not the server's.
    """

    def __init__(self, config: SiteConfig, data: SiteFolder, request: Message, folder: Path) -> None:
        training = request.values["training"]
        self.config = config
        self.data = data
        self.module = _method(config, request)
        self.fabric = make_fabric(
            accelerator=config.accelerator,
            devices=1,
            num_nodes=1,
            strategy="auto",
            precision=training["precision"],
            loggers=[],
        )
        set_up_method(self.fabric, self.module, config.num_threads)
        copy_state(request.tensors, starting_tensors(self.module), owner="The site's method")
        set_up_data(self.fabric, self.module, data, training["precision"], serves_images=False)
        add_ons = _add_ons(training["add_ons"])
        setups = set_up_phases(self.module, check_phases(self.module), add_ons)
        # What arrives is what this client is to download: the server's strategy has already chosen it.
        self.setups = [replace(setup, phase=replace(setup.phase, strategy=FedAvg(), download=None)) for setup in setups]
        self.store = SiteStore(folder)
        self.here = Workspace(
            fabric=self.fabric,
            module=self.module,
            data=data,
            local=LocalTraining(training["epochs"], training["steps"], reset_optimizer=training["reset_optimizer"]),
            initial_personal=self.module.personal_state(),
            seed=training["seed"],
            store=self.store,
            hooks=Hooks([]),
            validation=validation_splits(add_ons, data),
            run_folder=folder,
        )

    @property
    def client(self) -> Client:
        """The one client."""
        return self.data.clients[0]

    def train(self, request: Message) -> Message:
        """Returns the reply to a request of the kind ``train``.

        Raises:
            SiteProblem: if the client can't be trained.
        """
        values = request.values
        if values["phase"] >= len(self.setups):
            raise SiteProblem("knows no phase of that number")
        task = self._task(request)
        (result,) = train_clients([self.client], task, self.here, "skip")
        if result.failure:
            raise SiteProblem(_reason(self.here.errors.pop(self.client.id)))
        self.store.remove_old(task.round, self._files(values).values())
        return Message("trained", _values(task, result), result.update.state)

    def evaluate(self, request: Message) -> Message:
        """Returns the reply to a request of the kind ``evaluate``: sums of each of the site's splits."""
        module = self.module
        state = dict(request.tensors)
        if request.values["baseline"]:
            module = self.baseline
        elif module.personal:
            state |= self._kept("personal", request.values).get(self.client.id, self.here.initial_personal)
        module.eval()
        correct: dict[str, int] = {}
        count: dict[str, int] = {}
        for split in self.data.evaluation_splits():
            predictions = split_predictions(module, self.fabric, split, state)
            correct[split.name] = int((predictions.predicted == predictions.labels).sum())
            count[split.name] = len(predictions.labels)
        return Message("evaluated", {"correct": correct, "count": count})

    @cached_property
    def baseline(self) -> FederatedModule:
        """The method's untrained baseline."""
        baseline = self.module.baseline()
        if baseline is None:
            raise SiteProblem("knows no baseline of the method")
        self.fabric.to_device(baseline)
        return baseline

    def _task(self, request: Message) -> SiteTask:
        values = request.values
        download: State = dict(request.tensors)
        state = RunState(
            server=ServerState(download, download, round=values["round"]),
            personal=self._kept("personal", values),
            optimizer_states=self._kept("optimizer", values),
        )
        setup = self.setups[values["phase"]]
        noise = _noise(self.config, values["noise"])
        if noise is not None:
            setup = replace(setup, add_ons=(*setup.add_ons, NoisyUpload(noise)))
        client = self.client
        return SiteTask(
            setup=setup,
            state=state,
            seeds={client.id: values["seed"]},
            rounds=0,
            all_clients=lambda: [client],
            learning_rate_factor=values["factor"],
            shares_of_steps={client.id: values["share"]} if values["share"] < 1 else {},
        )

    def _kept(self, group: str, values: Mapping[str, Any]) -> StatesOnDisk:
        """Returns what stays on the client, as far as the server names a file of it."""
        name = self._files(values)[group]
        if name and not (self.store.folder / name).is_file():
            raise SiteProblem("has lost what it kept in an earlier round")
        return StatesOnDisk(self.store.folder, group, {self.client.id: name} if name else {})

    def _files(self, values: Mapping[str, Any]) -> dict[str, str]:
        return {group: values[group] for group in ("personal", "optimizer")}


def _method(config: SiteConfig, request: Message) -> FederatedModule:
    """Returns the server's method, made here."""
    model = dict(request.values["model"])
    options = dict(model.get("init_args") or {})
    if config.pretrained is not None:
        options["clip"] = {**options.get("clip", {}), "pretrained": config.pretrained}
    model["init_args"] = options
    try:
        check_classes(Path("the server's config"), request.values["model"], config.allow)
    except UserError as error:
        raise SiteProblem("does not allow a class that the server's config names; its log says which") from error
    module = build_method(model, request.values["training"]["seed"])
    if module.clip.fingerprint() != request.values["fingerprint"]:
        raise SiteProblem("has other weights of CLIP than the server")
    return module


def _add_ons(described: Sequence[Mapping[str, Any]]) -> list[AddOn]:
    """The add-ons that the server asks for, of those that come with the library.

    Raises:
        SiteProblem: if the site has none such.
    """
    add_ons: list[AddOn] = []
    for each in described:
        options = dict(each)
        try:
            add_ons.append(PUBLIC[options.pop("class")](**options))
        except (KeyError, TypeError, UserError) as error:
            raise SiteProblem("knows no such add-on of local training") from error
    return add_ons


def _noise(config: SiteConfig, values: Mapping[str, Any] | None) -> ClientNoise | None:
    """Returns what the client does to its upload, as the server asks, if that is enough for the site.

    Raises:
        SiteProblem: if it is less than the site wants, or would repeat, so that who knows the seed can take it off.
    """
    noise = None if values is None else ClientNoise(**values)
    least = config.min_noise_multiplier
    if least is not None and (noise is None or noise.noise_multiplier < least or noise.seed is not None):
        raise SiteProblem(f"trains only with noise of its own, from its system, of at least {least:g} times clip_norm")
    return noise


def _values(task: PhaseTask, result: ClientResult) -> dict[str, Any]:
    return {
        "round": task.round,
        "phase": task.index,
        "num_examples": result.update.num_examples,
        "metrics": dict(result.update.metrics),
        "finite": result.is_finite,
        # Of what went wrong only the kind may leave the site: texts of errors quote names of files.
        "retried": result.retried.partition(":")[0],
        "personal": result.personal,
        "optimizer": result.optimizer_state,
    }


def _reason(error: Exception) -> str:
    """Returns what a client did, without what the error says, which may quote names of files."""
    return str(error) if isinstance(error, ClientError) else f"raised {type(error).__name__}"


def starting_tensors(module: FederatedModule) -> dict[str, Tensor]:
    """Returns all tensors with which every site begins: what is exchanged or kept, and constants that are sent once."""
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {**module.communicable_state(), **select(every, module.broadcast_once)}
