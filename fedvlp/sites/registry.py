"""Registry of the connected sites: their nodes, their descriptions, and the checks of both."""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedvlp.sites.data import SitesData
from fedvlp.sites.wire import Message, SiteError, SiteFacts, SiteRefusal, Transport, installed_versions, read_reply
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text
from fedvlp.version import __version__

SECONDS_BETWEEN_POLLS = 1.0
SECONDS_BETWEEN_QUESTIONS = 15.0  # to a site without its operator's approval, or without a usable answer
SECONDS_TO_REPAIR = 300.0  # until a site that could not take part is asked again
SECONDS_TO_LEAVE = 10.0
BACKOFF = 10  # a silent node is skipped for this many times its wait
LARGEST_SHARE = 0.9  # of all training images; the server warns if a site reports more
UNDECIDED = "its operator has not approved the run yet"
log = logging.getLogger(__name__)


@dataclass
class SiteRegistry:
    """The connected sites.

    Args:
        transport: Connection to the sites.
        data: The configured sites; it also stores their descriptions.
        run: The run's id, which names the sites' files.
        description: The fields of ``wire.Description``.
        waiting: File that names the missing sites while the server waits.

    Attributes:
        nodes: The node (the transport's name) of each site, by the site's own name.
        problems: Reasons why listed sites do not take part, by the site's name.
        undecided: Nodes of sites whose operator has not yet approved the run, by the site's name.
        silent: Time until which a node is not asked again, because its site did not answer or can't take part.
        reported: The last warning about each node.
        last_wait: The last printed line about waiting.
    """

    transport: Transport
    data: SitesData
    run: str
    description: Mapping[str, Any]
    waiting: Path | None = None
    nodes: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    last_wait: str = ""

    def gather(self, minimum: int) -> None:
        """Wait until ``minimum`` sites are connected, then at most ``data.arrival_seconds`` for the others.

        Raises:
            UserError: If a site can't take part.
        """
        self._wait_for(minimum, until_problem=True)
        deadline = time.monotonic() + self.data.arrival_seconds
        while self.missing() and not self.problems and (left := deadline - time.monotonic()) > 0:
            self._wait(f"begins without them in {left:.0f} s", min(SECONDS_BETWEEN_POLLS, left))
        # Before the first round a mistake can still be corrected; later the site is only skipped.
        if self.problems:
            problems = [f"The site {name!r} {problem}." for name, problem in self.problems.items()]
            raise UserError(f"{' '.join(problems)} Nothing was trained.")
        if missing := self.missing():
            log.warning("Not connected yet: %s. Sites that connect later join then.", _quote(missing))
        self._end_waiting()

    def regather(self, minimum: int) -> None:
        """Detect sites that connected or left, and wait until ``minimum`` are connected."""
        self._wait_for(minimum, until_problem=False)
        self._end_waiting()

    def missing(self) -> list[str]:
        """List the names of the sites that are not connected."""
        return [name for name in self.data.sites if name not in self.nodes]

    def update(self) -> None:
        """Ask newly connected sites for their descriptions, and remove sites that have left."""
        connected = self.transport.names()
        self.nodes = {name: node for name, node in self.nodes.items() if node in connected}
        self.undecided = {name: node for name, node in self.undecided.items() if node in connected}
        began = time.monotonic()
        # A site that reconnects is asked immediately.
        self.silent = {node: end for node, end in self.silent.items() if node in connected and end > began}
        already_asked = {*self.nodes.values(), *self.silent}
        request = Message("describe", {"run": self.run, **self.description}).to_bytes()
        new = [(node, request) for node in connected if node not in already_asked]
        replies = []
        for node, reply in self.transport.exchange(new, self.data.arrival_seconds):
            replies.append((node, reply))
            now = time.monotonic()
            # Rarely: each question adds two lines to the site's ledger, and operators take their time.
            self.silent[node] = now + max(SECONDS_BETWEEN_QUESTIONS, BACKOFF * (now - began))
        # Sorted, so that every run admits the same one of two sites with equal names.
        for node, reply in sorted(replies, key=itemgetter(0)):
            self._admit(node, reply)

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message | SiteError]:
        """Send each site its message, by the site's name, and collect each reply or the reason for its absence."""
        names = {self.nodes[name]: name for name in messages if name in self.nodes}
        # Encoded as they are sent, because all together may exceed the memory.
        requests = ((node, messages[name].to_bytes()) for node, name in names.items())
        by_name: dict[str, Message | SiteError] = dict.fromkeys(messages, SiteError("is not connected"))
        began = time.monotonic()
        for node, content in self.transport.exchange(requests, self.data.reply_seconds):
            reply = self._decode(content)
            if isinstance(reply, Message) and reply.kind == "failed":
                then = reply.then
                reply = SiteRefusal(reply.values["reason"])
                reply.then = then
            by_name[names[node]] = reply
            outcome = reply if isinstance(reply, SiteError) else reply.kind
            print(f"  {names[node]!r} {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
        return by_name

    def dismiss(self) -> None:
        """Notify the sites that the run is over, so that they free its method and features."""
        request = Message("leave", {"run": self.run}).to_bytes()
        for _ in self.transport.exchange([(node, request) for node in self.nodes.values()], SECONDS_TO_LEAVE):
            pass

    def has_same_images(self, name: str, digests: Mapping[str, Any]) -> bool:
        """Whether a site has the same images and split as at the start of the run; true for a new site."""
        facts = self.data.facts.get(name)
        return facts is None or (facts.images, facts.split) == (digests["images"], digests["split"])

    def _admit(self, node: str, reply: bytes | SiteError) -> None:
        message = self._decode(reply)
        if isinstance(message, SiteError) or message.kind not in ("described", "refused", "waiting", "failed"):
            names = (f"The site {name!r}" for name, expected in self.data.nodes.items() if expected == node)
            reason = message if isinstance(message, SiteError) else "does not describe itself"
            self._report(node, f"{next(names, 'A site that has just connected')} ({node}) {reason}.")
            return
        values = dict(message.values)
        name = values.pop("name")
        # A site can claim any name; data.nodes ties names to the nodes' keys.
        expected = self.data.nodes.get(name, node)
        if name not in self.data.sites or expected != node:
            self.silent[node] = math.inf
            reason = "data.sites does not list it" if expected == node else f"data.nodes expects node {expected}"
            self._report(node, f"Node {node} is ignored: it uses the name {name!r}, but {reason}.")
            return
        self.undecided.pop(name, None)
        if message.kind == "waiting":
            self.undecided[name] = node
            self.silent[node] = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
        elif problem := values.get("reason") or self._problem(name, node, SiteFacts(**values)):
            # If another site has the name, ask in every update, to replace the other site once it leaves.
            self.silent[node] = 0 if name in self.nodes else time.monotonic() + SECONDS_TO_REPAIR
            self.problems[name] = problem
            self._report(node, f"The site {name!r} {problem}.")
        else:
            self.nodes[name] = node
            self.problems.pop(name, None)
            self.data.facts[name] = SiteFacts(**values)
            self._warn_of_facts(name)

    def _decode(self, reply: bytes | SiteError) -> Message | SiteError:
        folder = None if self.waiting is None else self.waiting.parent
        try:
            return reply if isinstance(reply, SiteError) else read_reply(reply, folder)
        except SiteError as error:
            return error

    def _report(self, node: str, line: str) -> None:
        if self.reported.get(node) != line:
            log.warning("%s", line)
        self.reported[node] = line

    def _problem(self, name: str, node: str, facts: SiteFacts) -> str:
        if name in self.nodes:
            nodes = f"{self.nodes[name]} and {node}"
            return f"is connected twice, as nodes {nodes}; give each site its own name, or set its node in data.nodes"
        expected = self.data.class_folders
        problems: list[str] = []
        if additional := sorted(set(facts.classes) - set(expected)):
            problems.append(f"has classes that data.class_names does not list: {_quote(additional)}")
        missing = sorted(set(expected) - set(facts.classes))
        if missing and not (self.data.allow_missing_classes or self.data.several_labels):
            problems.append(f"has no image of {_quote(missing)}; to allow this, set data.allow_missing_classes")
        if not facts.counts.get("train"):
            problems.append("has no training image")
        # Versions of fedvlp may compute different results; versions of libraries only round differently.
        if facts.versions.get("fedvlp") != __version__:
            problems.append(f"has fedvlp {facts.versions.get('fedvlp')}, but the server has {__version__}")
        if not self.has_same_images(name, {"images": facts.images, "split": facts.split}):
            problems.append("has different images than at the start of the run")
        return "; it ".join(problems)

    def _warn_of_facts(self, name: str) -> None:
        """Warn if a site's results may be rounded differently, its name is unprotected, or its weight dominates."""
        facts = self.data.facts[name]
        differing = [
            f"{package} {facts.versions.get(package, 'none')}, not {version}"
            for package, version in installed_versions().items()
            if facts.versions.get(package) != version
        ]
        if differing:
            log.warning("The site %r has %s. Its results may differ in rounding.", name, "; ".join(differing))
        if name not in self.data.nodes:
            node = self.nodes[name]
            log.warning("Node %s uses the name %r, which any node may use. Reserve it in data.nodes.", node, name)
        count = facts.counts["train"]
        total = sum(client.num_examples for client in self.data.clients)
        if count < total and count / total > LARGEST_SHARE:
            log.warning(
                "The site %r reports %.1f %% of all training images, so it dominates every mean. If the number is "
                "wrong, leave the site out, or choose a trainer.server.aggregation that weights sites equally.",
                *(name, 100 * count / total),
            )

    def _wait_for(self, minimum: int, until_problem: bool) -> None:
        self.update()
        # No limit, since sites may be down overnight. Continue once all sites without problems are connected.
        while len(self.nodes) < min(minimum, len(self.data.sites) - len(self.problems.keys() - self.nodes.keys())):
            if until_problem and self.problems:
                return
            self._wait(f"{minimum} are needed", SECONDS_BETWEEN_POLLS)

    def _wait(self, reason: str, seconds: float) -> None:
        notes = dict.fromkeys(self.undecided, f" ({UNDECIDED})")
        missing = ", ".join(f"{name!r}{notes.get(name, '')}" for name in self.missing())
        waits = f"for {missing}: {len(self.nodes)} of {len(self.data.sites)} sites are connected"
        if self.waiting is not None:
            self.waiting.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.waiting, f"{waits}; {reason}")
        if waits != self.last_wait:
            print(f"waiting {waits}; {reason}", flush=True)
        self.last_wait = waits
        time.sleep(seconds)
        self.update()

    def _end_waiting(self) -> None:
        self.last_wait = ""
        if self.waiting is not None:
            self.waiting.unlink(missing_ok=True)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
