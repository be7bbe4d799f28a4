"""A site's answers to requests: ``Site`` dispatches them, ``SiteWorker`` holds the method and features of one run."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor

import fedvlp.methods  # noqa: F401 (registers the short names of its classes)
from fedvlp.core.aggregation.base import ClientNoise
from fedvlp.core.balance import count_classes
from fedvlp.core.module import FederatedModule, check_phases, copy_state
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, RunState, ServerState, State, select, update_norm
from fedvlp.runs.client_store import DiskStore, StatesOnDisk
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.sites import wire
from fedvlp.sites.data import LOADER_OPTIONS, SPLIT_OPTIONS, SiteImages
from fedvlp.sites.ledger import Ledger
from fedvlp.sites.policy import Proposal, Uploads, decide, find_noiseless, leaving_problem, request_deviation
from fedvlp.sites.site_config import SiteConfig, read_site_config
from fedvlp.sites.wire import MAX_BYTES, Description, Message, SiteProblem, WireError, installed_versions, read_request
from fedvlp.training.add_ons import PUBLIC, AddOn
from fedvlp.training.add_ons.base import NoisyUpload
from fedvlp.training.client import ClientError, Workspace, train_clients
from fedvlp.training.evaluation import predict_split
from fedvlp.training.lightning_hooks import Hooks
from fedvlp.training.local_training import LocalTraining
from fedvlp.training.options import Clients, RunOptions, Server
from fedvlp.training.setup import make_fabric, set_up_data, set_up_method
from fedvlp.training.task import PhaseTask, validation_splits
from fedvlp.utils.digests import from_jsonable
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.plugins import import_plugins

MAX_FILES = 64  # of a client's personal tensors: a server resumes from one of its last few rounds
log = logging.getLogger(__name__)


class Site:
    """A site, which answers the server's requests sequentially and keeps the run's method between them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = read_site_config(home)
        self.worker: SiteWorker | None = None
        self.ledger = Ledger(home)
        self.uploads: dict[str, Uploads] = {}  # of proposed runs, by the description's digest

    def handle(self, content: bytes) -> bytes:
        """Answer one or two requests in turn; every problem becomes a reply with its reason.

        Raises:
            OSError: If the ledger can't be written. Nothing is sent without a line in the ledger.
        """
        return wire.join([self._handle(each) for each in wire.split(content)])

    def _handle(self, content: bytes) -> bytes:
        try:
            request = read_request(content)
        except WireError as error:
            request = Message("unreadable", {"reason": str(error)})
        began = time.monotonic()
        self.ledger.add("came", request.kind, content, request.values)
        reply, answer = self._answer_or_reason(request)
        more: dict[str, float] = {}
        # Keys for a secure sum have no norm, and a sum contains no noise.
        if reply.kind == "trained" and request.values["weighting"] is None:
            noise = request.values["noise"]
            # Noise drawn from a known seed can be subtracted.
            multiplier = 0.0 if noise is None or noise["seed"] is not None else noise["noise_multiplier"]
            more = {"norm": update_norm(reply.tensors, request.tensors), "noise": multiplier}
        self.ledger.add("left", reply.kind, answer, {**request.values, **reply.values}, **more)
        run, seconds = request.values.get("run", ""), time.monotonic() - began
        log.info("run %r: %s, %d bytes, in %.1f s", run, reply.kind, len(answer), seconds)
        return answer

    def _answer_or_reason(self, request: Message) -> tuple[Message, bytes]:
        try:
            reply = self._answer(request)
            answer = reply.to_bytes()
            if len(answer) > MAX_BYTES:
                raise SiteProblem(f"can't send {len(answer):,} bytes; a message has at most {MAX_BYTES:,}")
            left = self.ledger.bytes[request.values.get("run", "")]
            # Parts of a secure sum are named after sites; the policy has checked what the method uploads.
            names = () if self.config.secure_sum else reply.tensors
            if problem := leaving_problem(self.config.policy, names, len(answer), left + len(answer)):
                raise SiteProblem(problem)
            return reply, answer
        except SiteProblem as error:
            log.warning("A request failed: this site %s", error, exc_info=error.__cause__)
            reason = str(error)
        except Exception as error:
            # Only the type of an error leaves the site, because its text may quote names of files.
            log.exception("A request failed.")
            reason = f"raised {type(error).__name__}; see the site's log"
        reply = Message("failed", {"name": self.config.name, "reason": reason})
        return reply, reply.to_bytes()

    def _answer(self, request: Message) -> Message:
        values = request.values
        if request.kind == "unreadable":
            raise SiteProblem(values["reason"])
        if request.kind == "describe":
            return self._describe(request)
        if request.kind == "prepare":
            return self._prepare(request)
        is_prepared = self.worker is not None and self.worker.run == values["run"]
        if request.kind == "leave":
            self.worker = None if is_prepared else self.worker
            return Message("left")
        if self.worker is None or not is_prepared or self.worker.data.ids != (values["client"], values["domain"]):
            return Message("unprepared")
        if request.kind == "evaluate" and self.worker.sums is not None and self.worker.sums.current_sum is not None:
            # An evaluation ends the sum: the site drops its worker, and the server prepares it again.
            self.worker = None
            return Message("unprepared")
        problem = request_deviation(self.worker.description, values) if request.kind == "train" else ""
        if problem := problem or self._decision(request, self.worker.description)[1]:
            raise SiteProblem(problem)
        if request.kind == "evaluate":
            return self.worker.evaluate(request)
        if request.kind == "sum":
            return self.worker.sums.answer(request)
        return self.worker.train(request)

    def _decision(self, request: Message, description: Mapping[str, Any]) -> tuple[str, str]:
        run = Proposal(request.values["run"], description)
        # Counted from the ledger, so that neither a restart nor a repeated request starts from zero.
        if request.kind == "train":
            run = replace(run, updates=self.ledger.updates[run.run, request.values["phase"]] + 1)
        if request.kind == "evaluate":
            run = replace(run, evaluations=self.ledger.evaluations[run.run] + 1)

        def uploads() -> Uploads:
            if run.digest not in self.uploads:
                self.worker = None  # two methods at a time may not fit into the memory
                self.uploads[run.digest] = describe_uploads(_make_method(self.config, description), description)
            return self.uploads[run.digest]

        return decide(self.config.policy, self.home, run, uploads)

    def _describe(self, request: Message) -> Message:
        kind, reason = self._decision(request, read_description(request))
        if kind:
            return Message(kind, {"name": self.config.name, "reason": reason})
        data = self._data(request.values["data"])
        values = {
            "name": self.config.name,
            "classes": data.classes_with_images,
            "counts": {part.role: len(part) for part in data.split_parts},
            "versions": installed_versions(),
            **_digests(data),
        }
        return Message("described", values)

    def _prepare(self, request: Message) -> Message:
        run = request.values["run"]
        if problem := self._decision(request, read_description(request))[1]:
            raise SiteProblem(problem)
        # Free the last run's method first: two at a time may not fit into the memory.
        self.worker = None
        data = self._data(request.values["data"], (request.values["client"], request.values["domain"]))
        self.worker = SiteWorker(self.config, data, request, self.home / "runs" / run)
        return Message("prepared", _digests(data))

    def _data(self, options: Mapping[str, Any], ids: tuple[int, int] = (0, 0)) -> SiteImages:
        # Any other option, such as the folder of images, would let the server read other files.
        if unknown := sorted(options.keys() - SPLIT_OPTIONS - LOADER_OPTIONS):
            names = ", ".join(unknown)[:200]
            raise SiteProblem(f"does not support the data options {names}; its version of fedvlp may differ")
        if options.get("several_labels", False) is not self.config.several_labels:
            own_value = str(self.config.several_labels).lower()
            raise SiteProblem(f"has several_labels: {own_value} in its site.yaml, unlike the run; correct one of them")
        own = {"root", "table", "group", "on_bad_image", "num_workers", "cache_dir"}
        site_options = self.config.model_dump(include=own)
        try:
            data = SiteImages(domain=self.config.name, ids=ids, **site_options, **options)
            # The server compares the lists of classes later; without any listed class the images can't be split.
            if not set(data.classes) & set(data.classes_with_images):
                folders = ", ".join(map(repr, data.classes_with_images[:5]))
                raise SiteProblem(f"has none of the classes in data.class_names; its folders are {folders}")
            data.prepare_data()
        except UserError as error:
            raise SiteProblem("can't use its images with the server's options; see the site's log") from error
        return data


class SiteTask(PhaseTask):
    """A phase whose download is in the request."""

    def download(self, client: Client) -> State:
        """Return the request's tensors, which the server selected for the client."""
        return self.state.server.shared


class SiteWorker:
    """One run at one site, prepared by ``request``: trains and evaluates its single client.

    ``folder`` stores the run's personal tensors.

    Raises:
        SiteProblem: If the site can't instantiate the method, or it differs from the server's.
    """

    def __init__(self, config: SiteConfig, data: SiteImages, request: Message, folder: Path) -> None:
        options = _read_options(request.values)
        self.run = request.values["run"]
        self.description = read_description(request)
        self.data = data
        self.client = data.clients[0]
        self.module = _make_method(config, self.description)
        accelerator, precision = config.accelerator, options.precision
        self.fabric = make_fabric(accelerator=accelerator, devices=1, strategy="auto", precision=precision)
        set_up_method(self.fabric, self.module, config.num_threads)
        # Towers are loaded from the site's disk; prompts, slots and constants must equal the server's bit for bit.
        copy_state(request.tensors, starting_tensors(self.module), owner="The site's method")
        set_up_data(self.fabric, self.module, data, precision, serves_images=False)
        add_ons = options.local.listed_add_ons
        self.store = DiskStore(folder)
        self.workspace = Workspace(
            options=options,
            fabric=self.fabric,
            module=self.module,
            data=data,
            phases=check_phases(self.module),
            add_ons=add_ons,
            initial_personal=self.module.personal_state(),
            store=self.store,
            hooks=Hooks([]),
            validation=validation_splits(add_ons, data),
            folder=folder,
        )
        self.allows_class_counts = config.policy.class_counts
        self.sums: Any = None
        if config.secure_sum is not None:
            # Imported late: it needs packages that are installed with Flower.
            from fedvlp.sites.secure_sum.summing import SiteSums

            self.sums = SiteSums(config.name, Path(config.secure_sum), request, folder)

    def train(self, request: Message) -> Message:
        """Answer a request of the kind ``train``, or raise a SiteProblem if training fails."""
        values = request.values
        if values["phase"] >= len(self.workspace.phases):
            raise SiteProblem(f"has no phase {values['phase']}")
        if self.sums is None and values["weighting"] is not None:
            raise SiteProblem("is asked for a secure sum, but has no secure_sum in its site.yaml")
        if self.sums is not None and values["weighting"] is None:
            raise SiteProblem("trains only for secure sums, but the server asks for an update")
        if self.sums is not None:
            self.sums.check(request)
        task = self._task(request)
        uploaded = select(self.module.communicable_state(), task.phase.upload)
        # Noise is added to the change of each tensor, so the value before training is needed.
        if values["noise"] is not None and (lacking := sorted(uploaded.keys() - request.tensors.keys())):
            raise SiteProblem(f"can't add the run's noise to {lacking[0]!r}: its value before training was not sent")
        # The site never retries: the server decides whether a failed client trains again.
        (result,) = train_clients([self.client], task, self.workspace)
        if result.failure:
            error = self.workspace.errors.pop(self.client.id)
            raise SiteProblem(str(error) if isinstance(error, ClientError) else f"raised {type(error).__name__}")
        # Independent of the policy: the ledger's epsilon holds only if every tensor carries the noise.
        if values["noise"] is not None and (noiseless := find_noiseless(result.update.state)):
            raise SiteProblem(f"can't add the run's noise to {noiseless[0]!r}, which an add-on sends")
        # A site does not know the server's checkpoints. Files are never changed, so a server that resumes from an
        # earlier round needs one of the newest.
        files = sorted(self.store.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-MAX_FILES]:
            path.unlink(missing_ok=True)
        reply = {
            "round": task.round,
            "phase": task.index,
            "num_examples": result.update.num_examples,
            "metrics": dict(result.update.metrics),
            "finite": result.is_finite,
            # Only the type of an error leaves the site, because its text may quote names of files.
            "retried": result.retried.partition(":")[0],
            "personal": result.personal,
            "optimizer": result.optimizer_state,
        }
        if self.sums is not None:
            return Message("trained", {**reply, "metrics": {}}, self.sums.begin(request, result))
        return Message("trained", reply, result.update.state)

    def evaluate(self, request: Message) -> Message:
        """Answer a request of the kind ``evaluate`` with each split's number of images and of correct predictions.

        For several labels, the mean average precision replaces the number of correct predictions.
        """
        module = self.module
        state = dict(request.tensors)
        # The baseline is untrained, so it has no personal tensors.
        if request.values["baseline"]:
            module = self.baseline
        else:
            state |= self._cleared(state)
            if module.personal:
                personal = self._states("personal", request.values["personal"])
                state |= personal.get(self.client.id, self.workspace.initial_personal)
        module.eval()
        correct: dict[str, int] = {}
        count: dict[str, int] = {}
        by_class: dict[str, list[list[int]]] = {}
        precision: dict[str, float] = {}
        for split in self.data.evaluation_splits():
            predictions = predict_split(module, self.fabric, split, state)
            count[split.name] = len(predictions.labels)
            if predictions.has_several_labels:
                precision[split.name] = predictions.accuracy
                continue
            correct[split.name] = int((predictions.predicted == predictions.labels).sum())
            if self.allows_class_counts:
                counts = count_classes(predictions, self.data.class_names)
                by_class[split.name] = [list(map(int, class_counts)) for class_counts in counts.values()]
        reply: dict[str, Any] = {"correct": correct, "count": count, "by_class": by_class}
        return Message("evaluated", {**reply, "precision": precision} if precision else reply)

    def _cleared(self, state: State) -> State:
        """Create zeros for uploaded tensors that are missing in a state.

        Otherwise a server that sends fewer tensors could evaluate the values of the site's last training.
        """
        uploaded = [name for phase in self.workspace.phases for name in phase.upload]
        tensors = select(self.module.communicable_state(), uploaded)
        return {name: torch.zeros_like(value) for name, value in tensors.items() if name not in state}

    @cached_property
    def baseline(self) -> FederatedModule:
        """The method's untrained baseline."""
        baseline = self.module.baseline()
        if baseline is None:
            raise SiteProblem("is asked for a baseline, but the method has none")
        self.fabric.to_device(baseline)
        return baseline

    def _task(self, request: Message) -> SiteTask:
        values = request.values
        download: State = dict(request.tensors)
        state = RunState(
            server=ServerState(download, download, round=values["round"]),
            personal=self._states("personal", values["personal"]),
            optimizer_states=self._states("optimizer", values["optimizer"]),
        )
        task = SiteTask.from_phase(
            self.module,
            self.workspace.phases,
            values["phase"],
            self.workspace.add_ons,
            state=state,
            seeds={self.client.id: values["seed"]},
            # The server has applied schedules and weights, so the site needs neither all rounds nor other clients.
            rounds=0,
            all_clients=lambda: [self.client],
            learning_rate_factor=values["factor"],
            step_shares={self.client.id: values["share"]} if values["share"] < 1 else {},
        )
        if values["noise"] is None:
            return task
        return replace(task, add_ons=(*task.add_ons, NoisyUpload(ClientNoise(**values["noise"]))))

    def _states(self, group: str, name: str) -> StatesOnDisk:
        if name and not (self.store.folder / name).is_file():
            raise SiteProblem("has lost its personal tensors or optimizer state of an earlier round")
        return StatesOnDisk(self.store.folder, group, {self.client.id: name} if name else {})


def starting_tensors(module: FederatedModule) -> dict[str, Tensor]:
    """Collect the tensors that all sites start from: exchanged and personal tensors, and constants sent once."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {**module.communicable_state(), **select(tensors, module.broadcast_once)}


def read_description(request: Message) -> dict[str, Any]:
    """Extract the run's description from a request of the kind ``describe`` or ``prepare``."""
    return {name: request.values[name] for name in Description.model_fields}


def describe_uploads(module: FederatedModule, description: Mapping[str, Any]) -> Uploads:
    """Determine the shape and bytes of each uploaded tensor, by the phase's name and the tensor's name."""
    client = Client(0, 0, 0)
    state = RunState(ServerState.start(module.shared_state()))
    uploads: dict[str, dict[str, tuple[list[int], int]]] = {}
    phases, add_ons = check_phases(module), _read_options(description).local.listed_add_ons
    for index, phase in enumerate(phases):
        module.start_client(RoundContext(0, phase, client))
        task = PhaseTask.from_phase(
            module, phases, index, add_ons, state=state, seeds={}, rounds=1, all_clients=lambda: [client]
        )
        tensors = {**module.upload_state(), **task.upload_template(state.server.shared)}
        uploads[phase.name] = {name: (list(value.shape), value.nbytes) for name, value in tensors.items()}
    return uploads


def _make_method(config: SiteConfig, description: Mapping[str, Any]) -> FederatedModule:
    model = dict(description["model"])
    try:
        check_classes(Path("the server's config"), model, config.allow)
    except UserError as error:
        raise SiteProblem("does not allow the server's config; see its log, and allow in its site.yaml") from error
    # The site chooses the path but not the weights: the fingerprint is compared below.
    if config.pretrained is not None:
        options = dict(model.get("init_args") or {})
        model["init_args"] = {**options, "clip": {**options.get("clip", {}), "pretrained": config.pretrained}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedModule, "model", required=True, fail_untyped=False)
    # The constructor may draw random numbers, which must equal the server's.
    L.seed_everything(description["training"]["seed"], workers=True, verbose=False)
    import_plugins()
    try:
        parsed = parser.parse_object({"model": model})
    except ArgumentError as error:
        raise UserError(f"The config can't be used: {' '.join(str(error).split())}") from error
    clip = parsed["model"].init_args.get("clip")
    name = clip if isinstance(clip, str) else getattr(clip, "name", "")
    # Names with hf-hub: and local-dir: can refer to anything; all other names belong to open_clip.
    if ":" in name and name not in config.allow:
        reason = UserError(f"The server asks for the CLIP {name}. If you trust it, add {name} to allow in site.yaml.")
        raise SiteProblem("does not allow the server's CLIP; see the site's log") from reason
    with unwrapped_errors():
        module: FederatedModule = parser.instantiate(parsed)["model"]
    if module.clip.fingerprint() != description["fingerprint"]:
        raise SiteProblem("has different CLIP weights than the server")
    return module


def _read_options(description: Mapping[str, Any]) -> RunOptions:
    """Read the server's training options; only add-ons of the library are allowed."""
    classes = {kind.__name__: kind for kind in (RunOptions, LocalTraining, Server, Clients)} | PUBLIC
    try:
        options: RunOptions = from_jsonable({**description["training"], "rounds": description["rounds"]}, classes)
        if not all(isinstance(add_on, AddOn) for add_on in options.local.listed_add_ons):
            raise TypeError("expected add-ons")
    except (KeyError, TypeError, AttributeError, UserError) as error:
        raise SiteProblem("does not support the server's options of local training") from error
    return options


def _digests(data: SiteImages) -> dict[str, str]:
    return {"images": data.describe()["images"], "split": data.split_hash}
