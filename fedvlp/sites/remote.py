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
from fedvlp.core.protocols import MeasuredData
from fedvlp.core.state import Client, ClientUpdate, State
from fedvlp.runs.client_store import ClientStore, StoreAtSites, files_of
from fedvlp.sites.roster import Roster
from fedvlp.sites.sites_data import MEASURED, SplitAtSite
from fedvlp.sites.transport import SiteError
from fedvlp.sites.wire import Message
from fedvlp.training.client_trainer import ClientResult, ClientSlot, ClientTrainer, PhaseOrder
from fedvlp.training.evaluation import Tally, split_accuracy, with_means

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


@dataclass(frozen=True)
class RemoteTrainer:
    """Trains clients at their sites.

    Args:
        sites: where they are.
        slot: the server's; its module is not trained.
        run: the run's id.
    """

    sites: Sites
    slot: ClientSlot
    run: str

    def train(self, order: PhaseOrder, clients: Sequence[Client]) -> list[ClientResult]:
        """Returns the results of these clients; one without a usable reply failed."""
        policy = self.slot.failures.policy
        self.sites.roster.regather(min(policy.min_clients, len(clients)))
        results = self._asked(order, clients)
        failed = [result.update.client for result in results.values() if result.failure]
        if policy.on_client_failure == "retry" and failed:
            for client, again in self._asked(order, failed).items():
                first = results[client].failure
                results[client] = again if again.failure else replace(again, retried=first)
        return list(results.values())

    def _asked(self, order: PhaseOrder, clients: Sequence[Client]) -> dict[Client, ClientResult]:
        """Returns the results of one try."""
        known = [client for client in clients if client.num_examples]
        replies = self.sites.ask({client: self._request(order, client) for client in known})
        absent = SiteError("was not there when the round began")
        return {client: self._result(order, client, replies.get(client, absent)) for client in clients}

    def _request(self, order: PhaseOrder, client: Client) -> Message:
        values = {
            "run": self.run,
            "round": order.round,
            "phase": order.index,
            "seed": order.seeds[client.id],
            "factor": order.learning_rate_factor,
            "share": order.shares_of_steps.get(client.id, 1.0),
            "noise": None if order.client_noise is None else asdict(order.client_noise),
            "client": client.id,
            "domain": client.domain,
            "personal": files_of(order.state.personal).get(client.id, ""),
            "optimizer": files_of(order.state.optimizer_states).get(client.id, ""),
        }
        return Message("train", values, order.phase.strategy.broadcast(order.state.server, client))

    def _result(self, order: PhaseOrder, client: Client, reply: Message | SiteError) -> ClientResult:
        if isinstance(reply, SiteError):
            return ClientResult.of_failure(client, str(reply))
        values = reply.values
        if reply.kind == "unprepared":
            return ClientResult.of_failure(client, "was prepared for the run and has forgotten it at once")
        if reply.kind != "trained" or (values["round"], values["phase"]) != (order.round, order.index):
            return ClientResult.of_failure(client, "answered something else than it was asked")
        if values["num_examples"] != client.num_examples:  # its weight must not change as it likes
            return ClientResult.of_failure(client, "has another number of training images than it said at first")
        update = ClientUpdate(client, reply.tensors, values["num_examples"], values["metrics"])
        self.slot.hooks.call("on_client_end", phase=order.phase, update=update)
        kept = (values["personal"], values["optimizer"])
        return ClientResult(update, *kept, is_finite=values["finite"], retried=values["retried"])


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

    def client_trainer(self, slot: ClientSlot) -> ClientTrainer:
        """Returns what trains at the sites."""
        return RemoteTrainer(self.sites, slot, self.roster.run)

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
        tallies = self._tallies(self.sites.ask(requests))
        accuracy = {split.name: tallies[split.name].percent for split in at_sites if split.name in tallies}
        is_complete = len(accuracy) == len(at_sites)
        module.eval()
        is_measurable = not module.personal or module.unseen == "shared"
        for split in splits:
            if is_measurable and not isinstance(split, SplitAtSite):
                accuracy[split.name] = split_accuracy(module, fabric, split, deployed)
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

    def _tallies(self, replies: Mapping[Client, Message | SiteError]) -> dict[str, Tally]:
        """Returns the sums by split; of a site without a usable reply none, which is said."""
        found: dict[str, Tally] = {}
        for client, reply in replies.items():
            if isinstance(reply, SiteError):
                log.warning("The site %r could not measure: it %s.", client.name, reply)
            elif reply.kind != "evaluated":
                log.warning("The site %r could not measure: it answered something else than it was asked.", client.name)
            else:
                found |= self._own_tallies(client.name, reply.values)
        return found

    def _own_tallies(self, site: str, values: Mapping[str, Any]) -> dict[str, Tally]:
        """Returns the sums of a site's own splits, if they are of as many images as it said at first."""
        known = self.roster.data.facts[site].counts
        found: dict[str, Tally] = {}
        for role in MEASURED:
            name = f"{role}/{site}"
            count = values["count"].get(name, 0)
            correct = values["correct"].get(name, 0)
            if 0 < count == known.get(role) and correct <= count:
                found[name] = Tally(correct, count)
        return found


def _is(reply: Message | SiteError, kind: str) -> bool:
    return isinstance(reply, Message) and reply.kind == kind
