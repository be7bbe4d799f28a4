"""The engine of a federation whose clients are sites: orders go out as bytes, and results come back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from lightning import Fabric

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import client_noise
from fedvlp.core.predictions import percent
from fedvlp.core.protocols import MeasuredData
from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.runs.client_store import ClientStore, StoreAtSites, files_of
from fedvlp.sites.roster import Roster
from fedvlp.sites.sites_data import MEASURED, SplitAtSite
from fedvlp.sites.transport import SiteError
from fedvlp.sites.wire import Message
from fedvlp.training.client import ClientResult, Workspace
from fedvlp.training.evaluation import shared_predictions, with_means
from fedvlp.training.task import AcceptancePolicy, PhaseTask

log = logging.getLogger(__name__)


@dataclass
class Sites:
    """Sites that are prepared before they are asked anything, also those that come late or come back.

    Args:
        roster: who is who.
        preparation: the message of the kind ``prepare``, but for whose it is.

    Attributes:
        prepared: places of the transport whose sites were prepared.
    """

    roster: Roster
    preparation: Message
    prepared: set[str] = field(default_factory=set)

    def ask(self, messages: Mapping[Client, Message]) -> dict[Client, Message | SiteError]:
        """Returns each client's reply, or why there is none."""
        replies = self._ask(messages)
        forgot = [client for client, reply in replies.items() if _is(reply, "unprepared")]
        for client in forgot:  # its process was started anew
            self.prepared.discard(self._place(client))
        return {**replies, **self._ask({client: messages[client] for client in forgot})}

    def _ask(self, messages: Mapping[Client, Message]) -> dict[Client, Message | SiteError]:
        if not messages:
            return {}
        refused = self._prepare(messages)
        ready = {client: message for client, message in messages.items() if client not in refused}
        replies = self.roster.exchange({client.name: message for client, message in ready.items()})
        return {**refused, **{client: replies[client.name] for client in ready}}

    def _prepare(self, clients: Mapping[Client, Any]) -> dict[Client, SiteError]:
        """Prepares those that are not yet, and returns why some can't be."""
        new = [client for client in clients if self._place(client) not in self.prepared]
        messages: dict[str, Message] = {}
        for client in new:
            values = {**self.preparation.values, "client": client.id, "domain": client.domain}
            messages[client.name] = Message("prepare", values, self.preparation.tensors)
        replies = self.roster.exchange(messages)
        refused: dict[Client, SiteError] = {}
        for client in new:
            reply = replies[client.name]
            if isinstance(reply, SiteError):
                refused[client] = reply
            elif reply.kind != "prepared":
                refused[client] = SiteError(f"answered {reply.kind!r} when it was prepared")
            elif not self.roster.has_same_images(client.name, reply.values):
                refused[client] = SiteError("has other images than when the run began")
            else:
                self.prepared.add(self._place(client))
        return refused

    def _place(self, client: Client) -> str:
        return self.roster.places.get(client.name, "")


@dataclass
class SitesEngine:
    """Trains and measures at sites; what a server has of images it measures itself.

    Args:
        roster: who is who.
        preparation: the message of the kind ``prepare``, but for whose it is.
        method: the method of the run; every other that is measured is its baseline.
    """

    roster: Roster
    preparation: Message
    method: FederatedModule

    def __post_init__(self) -> None:
        """Begins with sites that know nothing of the run."""
        self.sites = Sites(self.roster, self.preparation)

    def client_store(self, run: Path | None) -> ClientStore:
        """Returns what knows the names of the sites' files."""
        return StoreAtSites()

    def train(
        self, clients: Sequence[Client], task: PhaseTask, here: Workspace, policy: AcceptancePolicy
    ) -> list[ClientResult]:
        """Trains clients at their sites; one without a usable reply failed."""
        self.roster.regather(min(policy.min_clients, len(clients)))
        results = self._asked(clients, task, here)
        failed = [client for client, result in results.items() if result.failure]
        if policy.on_failure == "retry" and failed:
            for client, again in self._asked(failed, task, here).items():
                first = results[client].failure
                results[client] = again if again.failure else replace(again, retried=first)
        return list(results.values())

    def _asked(self, clients: Sequence[Client], task: PhaseTask, here: Workspace) -> dict[Client, ClientResult]:
        """The results of one try."""
        there = [client for client in clients if client.num_examples]
        replies = self.sites.ask({client: self._training(task, client) for client in there})
        absent = SiteError("was not there when the round began")
        results: dict[Client, ClientResult] = {}
        for client in clients:
            results[client] = client_result(task, client, replies.get(client, absent))
            if not results[client].failure:
                here.hooks.call("on_client_end", phase=task.phase, update=results[client].update)
        return results

    def _training(self, task: PhaseTask, client: Client) -> Message:
        """The message of the kind ``train`` for a client."""
        noise = client_noise(task.phase.strategy)
        values = {
            "run": self.roster.run,
            "round": task.round,
            "phase": task.index,
            "seed": task.seeds[client.id],
            "factor": task.learning_rate_factor,
            "share": task.shares_of_steps.get(client.id, 1.0),
            "noise": None if noise is None else asdict(noise),
            "client": client.id,
            "domain": client.domain,
            "personal": files_of(task.state.personal).get(client.id, ""),
            "optimizer": files_of(task.state.optimizer_states).get(client.id, ""),
        }
        return Message("train", values, task.download(client))

    def evaluate(
        self,
        module: FederatedModule,
        data: MeasuredData,
        fabric: Fabric,
        deployed: State,
        personal: Mapping[int, State],
    ) -> dict[str, float]:
        """Returns the accuracies that sites measured and those of the server's own images.

        Of a site that does not answer nothing is known, and then there is no mean either: a mean over others would be
        another number. A method that keeps tensors on clients can't be measured on the server's images, unless by
        what all share.
        """
        self.roster.look()
        splits = data.evaluation_splits()
        at_sites = [split for split in splits if isinstance(split, SplitAtSite)]
        clients = dict.fromkeys(chain.from_iterable(split.clients for split in at_sites))
        requests = {client: self._request(module, client, deployed, personal) for client in clients}
        accuracies = self._accuracies(self.sites.ask(requests))
        accuracy = {split.name: accuracies[split.name] for split in at_sites if split.name in accuracies}
        is_complete = len(accuracy) == len(at_sites)
        module.eval()
        is_measurable = not module.personal or module.unseen == "shared"
        for split in splits:
            if is_measurable and not isinstance(split, SplitAtSite):
                accuracy[split.name] = shared_predictions(module, fabric, split, deployed).accuracy
        means = with_means(accuracy)
        return means if is_complete else {name: means[name] for name in means if name not in MEASURED}

    def _request(
        self, module: FederatedModule, client: Client, deployed: State, personal: Mapping[int, State]
    ) -> Message:
        values = {
            "run": self.roster.run,
            "baseline": module is not self.method,
            "client": client.id,
            "domain": client.domain,
            "personal": files_of(personal).get(client.id, ""),
            "optimizer": "",
        }
        return Message("evaluate", values, deployed)

    def _accuracies(self, replies: Mapping[Client, Message | SiteError]) -> dict[str, float]:
        """Returns the accuracy of each split in percent; of a site without a usable reply none, which is logged."""
        found: dict[str, float] = {}
        for client, reply in replies.items():
            if isinstance(reply, SiteError):
                log.warning("The site %r could not measure: it %s.", client.name, reply)
            elif reply.kind != "evaluated":
                log.warning("The site %r could not measure: it answered something else than it was asked.", client.name)
            else:
                found |= self._own_accuracies(client.name, reply.values)
        return found

    def _own_accuracies(self, site: str, values: Mapping[str, Any]) -> dict[str, float]:
        """Returns the accuracies of a site's own splits, if they are of as many images as it said at first."""
        known = self.roster.data.facts[site].counts
        found: dict[str, float] = {}
        for role in MEASURED:
            name = f"{role}/{site}"
            count = values["count"].get(name, 0)
            correct = values["correct"].get(name, 0)
            if 0 < count == known.get(role) and correct <= count:
                found[name] = percent(correct, count)
        return found


def client_result(task: PhaseTask, client: Client, reply: Message | SiteError) -> ClientResult:
    """What a client's reply comes to: its update, or why there is none."""
    if isinstance(reply, SiteError):
        return ClientResult.of_failure(client, str(reply))
    values = reply.values
    if reply.kind == "unprepared":
        return ClientResult.of_failure(client, "was prepared for the run and has forgotten it at once")
    if reply.kind != "trained" or (values["round"], values["phase"]) != (task.round, task.index):
        return ClientResult.of_failure(client, "answered something else than it was asked")
    if values["num_examples"] != client.num_examples:  # its weight must not change as it likes
        return ClientResult.of_failure(client, "has another number of training images than it said at first")
    update = ClientUpdate(client, reply.tensors, values["num_examples"], values["metrics"])
    return ClientResult(
        update, values["personal"], values["optimizer"], is_finite=values["finite"], retried=values["retried"]
    )


def _is(reply: Message | SiteError, kind: str) -> bool:
    return isinstance(reply, Message) and reply.kind == kind
