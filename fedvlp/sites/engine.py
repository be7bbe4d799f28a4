"""The engine of a federation of sites: it turns phases into requests, and replies into results."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedvlp.core.balance import ClassCounts, count_classes
from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import client_noise, privacy_guarantees
from fedvlp.core.predictions import percent
from fedvlp.core.state import Client, ClientUpdate, RunState, State, num_bytes
from fedvlp.runs.checkpoint import save_checkpoint
from fedvlp.runs.client_store import ClientStore, StoreAtSites, state_files
from fedvlp.runs.run_folder import checkpoint_file
from fedvlp.sites.data import MEASURED, SplitAtSite
from fedvlp.sites.registry import UNDECIDED, SiteRegistry
from fedvlp.sites.wire import Message, Reply, SiteError, SiteRefusal
from fedvlp.training.callback import RunView
from fedvlp.training.client import Workspace
from fedvlp.training.engine import PhaseResults
from fedvlp.training.evaluation import add_means, predict_shared
from fedvlp.training.round import first_step
from fedvlp.training.secure_sum import weightings
from fedvlp.training.task import ClientResult, PhaseTask
from fedvlp.utils.errors import UserError

UNEXPECTED = "sent a reply that does not match the request"
MAX_JOINED_BYTES = 64 << 20  # of the shared tensors
MAX_REPEATS = 3  # of requests in a phase with too few updates
NOT_CONNECTED = SiteError("was not connected when the round began")
Results = dict[Client, ClientResult]
log = logging.getLogger(__name__)


@dataclass
class SitesEngine:
    """Engine that trains and evaluates at the sites, and evaluates the server's images locally.

    Args:
        registry: The connected sites.
        preparation: The message of the kind ``prepare``, without the fields that identify the client.
        method: The method of the run; every other method that is evaluated is its baseline.

    Attributes:
        prepared: Nodes of the prepared sites.
        early: Replies to requests of the next round that were sent with the last evaluation.
        class_counts: Counts by class for each split of the last evaluation, including the sites' splits only if every
            site reports them.
    """

    registry: SiteRegistry
    preparation: Message
    method: FederatedModule
    prepared: set[str] = field(default_factory=set)
    early: dict[Client, Reply] = field(default_factory=dict)
    class_counts: dict[str, ClassCounts] = field(default_factory=dict)

    def prepare(self) -> None:
        """Prepare the connected sites, so that a site that can't train ends the run before the first round.

        Raises:
            UserError: If a site refuses.
        """
        present = [client for client in self.registry.data.clients if client.name in self.registry.nodes]
        refused = self._prepare(present).items()
        refusals = [f"The site {site.name!r} {error}." for site, error in refused if isinstance(error, SiteRefusal)]
        if refusals:
            raise UserError(f"{' '.join(refusals)} Nothing was trained.")

    def client_store(self, run: Path | None) -> ClientStore:
        """Create a store of file names; the files are at the sites."""
        return StoreAtSites()

    def train(self, clients: Sequence[Client], task: PhaseTask, workspace: Workspace) -> PhaseResults:
        """Train clients at their sites; a client without a usable reply counts as failed."""
        options = workspace.options
        # The cohort may be smaller than the minimum of the whole federation.
        minimum = min(options.server.min_clients, len(clients))
        results: Results = {}
        asked = clients
        for attempt in range(1 + MAX_REPEATS):
            replies, self.early = self.early, {}
            if not replies:
                self.registry.regather(minimum)
                replies = self.request(self._training(task, asked, workspace))
            results |= self._results(task, asked, replies, results)
            failed = [client for client, result in results.items() if result.failure]
            unanswered = [client for client in asked if type(replies.get(client, NOT_CONNECTED)) is SiteError]
            asked = failed if options.clients.on_failure == "retry" and not attempt else []
            count = len(results) - len(failed)
            # Sites may fail together, if the server's network does. A site can't repeat its part of a secure sum.
            if unanswered and count < minimum and attempt < MAX_REPEATS and not options.server.secure_sum:
                updates = f"{count} of {minimum} updates"
                log.warning("Round %d has %s. Sites that did not answer are asked again.", task.round + 1, updates)
                asked = unanswered
            if not asked:
                break
        trained = list(results.values())
        if not options.server.secure_sum:
            return PhaseResults(trained)
        # Imported late: it needs packages that are installed with Flower.
        from fedvlp.sites.secure_sum.summing import sum_updates

        return sum_updates(self.registry, trained, task, options.server.min_clients)

    def _results(
        self, task: PhaseTask, clients: Sequence[Client], replies: Mapping[Client, Reply], earlier: Results
    ) -> Results:
        absent = {name: SiteError(problem) for name, problem in self.registry.problems.items()}
        absent |= {name: SiteError(f"did not train: {UNDECIDED}") for name in self.registry.undecided}
        results: Results = {}
        for client in clients:
            result = client_result(task, client, replies.get(client, absent.get(client.name, NOT_CONNECTED)))
            is_repeated = client in earlier and not result.failure
            results[client] = replace(result, retried=earlier[client].failure) if is_repeated else result
        return results

    def _next_training(self, workspace: Workspace, state: RunState) -> dict[Client, Message]:
        """Make the requests of the round after ``state``, if they do not depend on the evaluation before it."""
        options = workspace.options
        clients, task = first_step(workspace, state)
        has_too_few = len(self.registry.nodes) < min(options.server.min_clients, len(clients))
        # Callbacks of the user may end the run. Secret cohorts and noise can't be drawn again.
        may_stop = any(not type(each).__module__.startswith("fedvlp.") for each in workspace.hooks.callbacks)
        is_secret = any(not guarantee.repeats for guarantee in privacy_guarantees(workspace.phases))
        # Both requests contain the tensors. The time of an exchange matters only for small ones.
        is_large = num_bytes(state.server.shared) > MAX_JOINED_BYTES
        if options.server.secure_sum or has_too_few or may_stop or is_secret or is_large:
            return {}
        return self._training(task, clients, workspace)

    def _training(self, task: PhaseTask, clients: Sequence[Client], workspace: Workspace) -> dict[Client, Message]:
        # A client without images is a site that has not connected yet.
        return {client: self._request(task, client, workspace) for client in clients if client.num_examples}

    def _request(self, task: PhaseTask, client: Client, workspace: Workspace) -> Message:
        noise = client_noise(task.phase.strategy)
        values = {
            **self._client_fields(client),
            "round": task.round,
            "phase": task.index,
            "seed": task.seeds[client.id],
            "factor": task.learning_rate_factor,
            "share": task.step_shares.get(client.id, 1.0),
            "noise": None if noise is None else asdict(noise),
            "weighting": next(iter(weightings(task.phase.strategy))) if workspace.options.server.secure_sum else None,
            # Only names: personal tensors are at the site, and a resumed run names the files of its checkpoint.
            "personal": state_files(task.state.personal).get(client.id, ""),
            "optimizer": state_files(task.state.optimizer_states).get(client.id, ""),
        }
        return Message("train", values, task.download(client))

    def _client_fields(self, client: Client) -> dict[str, Any]:
        return {"run": self.registry.run, "client": client.id, "domain": client.domain}

    def request(self, messages: Mapping[Client, Message]) -> dict[Client, Reply]:
        """Send clients their messages, and collect each reply or the reason for its absence.

        Sites that are not prepared, such as late sites and restarted processes, are prepared first.
        """
        replies = self._request_prepared(messages)
        # Prepare a site again, once, if its process was restarted; its files still exist.
        unprepared: dict[Client, Message] = {}
        for client, reply in replies.items():
            if isinstance(reply, Message) and reply.kind == "unprepared":
                unprepared[client] = messages[client]
                self.prepared.discard(self.registry.nodes.get(client.name, ""))
        return {**replies, **self._request_prepared(unprepared)}

    def _request_prepared(self, messages: Mapping[Client, Message]) -> dict[Client, Reply]:
        nodes = self.registry.nodes
        refused = self._prepare([client for client in messages if nodes.get(client.name) not in self.prepared])
        ready = {client: message for client, message in messages.items() if client not in refused}
        replies = self.registry.exchange({client.name: message for client, message in ready.items()})
        return {**refused, **{client: replies[client.name] for client in ready}}

    def _prepare(self, clients: Sequence[Client]) -> dict[Client, SiteError]:
        """Prepare sites, and return the reason of each failure; failed sites are tried again in the next round."""
        messages: dict[str, Message] = {}
        for client in clients:
            values = {**self.preparation.values, **self._client_fields(client)}
            messages[client.name] = Message("prepare", values, self.preparation.tensors)
        replies = self.registry.exchange(messages)
        refused: dict[Client, SiteError] = {}
        for client in clients:
            reply = replies[client.name]
            if isinstance(reply, SiteError):
                refused[client] = reply
            elif reply.kind != "prepared":
                refused[client] = SiteRefusal(f"answered {reply.kind!r} when it was prepared")
            elif not self.registry.has_same_images(client.name, reply.values):
                refused[client] = SiteRefusal("has different images than at the start of the run")
            else:
                self.prepared.add(self.registry.nodes.get(client.name, ""))
        return refused

    def evaluate(
        self, federation: RunView, module: FederatedModule, deployed: State, personal: Mapping[int, State]
    ) -> dict[str, float]:
        """Collect the sites' accuracies, and evaluate the server's images, in percent.

        A role has a mean only if all sites answered. The server's images are evaluated only if the method has no
        personal tensors, or evaluates held-out domains with its shared tensors.
        The sites also train for the next round, unless it may depend on the accuracies.
        """
        self.registry.update()
        splits = federation.data.evaluation_splits()
        at_sites = [split for split in splits if isinstance(split, SplitAtSite)]
        requests: dict[Client, Message] = {}
        for client in chain.from_iterable(split.clients for split in at_sites):
            values = {"baseline": module is not self.method, "personal": state_files(personal).get(client.id, "")}
            requests[client] = Message("evaluate", {**self._client_fields(client), **values}, deployed)
        training = self._next_training(*federation.following) if federation.following else {}
        if training:
            # The training may take long. A resumed run repeats only the evaluation and what follows.
            workspace, state = federation.following
            state = replace(state, callbacks=workspace.hooks.states())
            path = checkpoint_file(Path(federation.log_dir), state.server.round)
            save_checkpoint(path, state, federation.description)
        joined = {client: replace(message, then=requests.get(client)) for client, message in training.items()}
        replies = self.request({**requests, **joined})
        self.early = {client: replies[client] for client in training}
        self.class_counts = {}
        evaluations = {client: replies[client].then or replies[client] for client in requests}
        accuracies = self._accuracies(evaluations, federation.data.class_names)
        accuracy = {split.name: accuracies[split.name] for split in at_sites if split.name in accuracies}
        is_complete = len(accuracy) == len(at_sites)
        # Scores of only some sites would not be comparable with scores of all sites.
        if not {split.name for split in at_sites} <= self.class_counts.keys():
            self.class_counts = {}
        module.eval()
        is_measurable = not module.personal or module.held_out_evaluation == "shared"
        for split in splits:
            if is_measurable and not isinstance(split, SplitAtSite):
                predictions = predict_shared(module, federation.fabric, split, deployed)
                accuracy[split.name] = predictions.accuracy
                class_names = split.class_names or federation.data.class_names
                self.class_counts[split.name] = count_classes(predictions, class_names)
        means = add_means(accuracy)
        return means if is_complete else {name: means[name] for name in means if name not in MEASURED}

    def _accuracies(self, replies: Mapping[Client, Reply], class_names: Sequence[str]) -> dict[str, float]:
        accuracies: dict[str, float] = {}
        for client, reply in replies.items():
            if isinstance(reply, SiteError) or reply.kind != "evaluated":
                reason = reply if isinstance(reply, SiteError) else reply.values.get("reason", UNEXPECTED)
                log.warning("The site %r has no evaluation: it %s.", client.name, reason)
                continue
            for role, num_images in self.registry.data.facts[client.name].counts.items():
                name = f"{role}/{client.name}"
                count = reply.values["count"].get(name, 0)
                correct = reply.values["correct"].get(name, 0)
                precision = reply.values.get("precision", {}).get(name)
                # A site must evaluate as many images as it described when it connected.
                if role not in MEASURED or not correct <= count == num_images > 0:
                    continue
                if self.registry.data.several_labels:
                    accuracies |= {} if precision is None else {name: precision}
                    continue
                accuracies[name] = percent(correct, count)
                by_class = reply.values["by_class"].get(name, [])
                sums = [sum(column) for column in zip(*by_class, strict=True)]
                is_possible = all(right <= min(images, predicted) for images, right, predicted in by_class)
                if len(by_class) == len(class_names) and sums == [count, correct, count] and is_possible:
                    self.class_counts[name] = dict(zip(class_names, by_class, strict=True))
        return accuracies


def client_result(task: PhaseTask, client: Client, reply: Reply) -> ClientResult:
    """Convert a client's reply into its update, or into the reason of its failure."""
    if isinstance(reply, SiteError):
        return ClientResult.from_failure(client, str(reply))
    values = reply.values
    if reply.kind == "unprepared":
        return ClientResult.from_failure(client, "lost the run's method right after it was prepared")
    if reply.kind != "trained" or (values["round"], values["phase"]) != (task.round, task.index):
        return ClientResult.from_failure(client, UNEXPECTED)
    # The number must not change during the run, because it is the client's weight in the mean.
    if values["num_examples"] != client.num_examples:
        return ClientResult.from_failure(client, "reports another number of training images than when it connected")
    update = ClientUpdate(client, reply.tensors, values["num_examples"], values["metrics"])
    return ClientResult(
        update, values["personal"], values["optimizer"], is_finite=values["finite"], retried=values["retried"]
    )
