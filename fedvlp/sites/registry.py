"""Which connected site is which client, whether it has what the server expects, and how it is reached."""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedvlp.sites.data import SitesData
from fedvlp.sites.wire import Message, SiteError, SiteFacts, SiteRefusal, Transport, read_reply, versions_here
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text
from fedvlp.version import __version__

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_QUESTIONS = 15.0  # to a site without its keeper's approval, or without a usable answer
SECONDS_TO_REPAIR = 300.0  # until a site that could not take part is asked again
SECONDS_TO_LEAVE = 10.0
TIMES_LEFT_OUT = 10  # a silent node is left out for this many times the wait
LARGEST_SHARE = 0.9  # of all training images; the server warns of a site that reports more
UNDECIDED = "its keeper has not approved the run yet"
log = logging.getLogger(__name__)


@dataclass
class SiteRegistry:
    """The connected sites.

    Args:
        transport: Reaches the sites.
        data: Lists the sites, and stores their descriptions.
        run: The run's id, under which sites keep their files.
        description: The fields of ``wire.Description``.
        waiting: File that names the missing sites while the server waits.

    Attributes:
        places: The transport's name of each site, by the site's own name.
        problems: Why listed sites can't or will not take part, by the site's name.
        undecided: Places of sites whose keeper has not yet approved the run, by the site's name.
        silent: Time before which a place is not asked again, because its site did not answer or can't take part.
        reported: The last warning about each place.
        last_wait: The last printed line about waiting.
    """

    transport: Transport
    data: SitesData
    run: str
    description: Mapping[str, Any]
    waiting: Path | None = None
    places: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    last_wait: str = ""

    def gather(self, least: int) -> None:
        """Wait until enough sites are there, and then for the others, no longer than ``data.arrival_seconds``.

        Raises:
            UserError: If a site lacks what is expected.
        """
        self._wait_for(least, until_problem=True)
        deadline = time.monotonic() + self.data.arrival_seconds
        while self.missing() and not self.problems and (left := deadline - time.monotonic()) > 0:
            self._wait(f"begins without them in {left:.0f} s", min(SECONDS_BETWEEN_LOOKS, left))
        # Before the first round a mistake can still be mended; later the site is only left out.
        if self.problems:
            problems = [f"The site {name!r} {problem}." for name, problem in self.problems.items()]
            raise UserError(f"{' '.join(problems)} Nothing was trained.")
        if missing := self.missing():
            log.warning("Not there yet: %s. Sites that come later take part from then on.", _listed(missing))
        self._end_waiting()

    def regather(self, least: int) -> None:
        """Look for sites that came or left, and wait while too few are there."""
        self._wait_for(least, until_problem=False)
        self._end_waiting()

    def missing(self) -> list[str]:
        """List the names of the sites that are not connected."""
        return [name for name in self.data.sites if name not in self.places]

    def look(self) -> None:
        """Ask newly connected sites for their descriptions, and forget those that have left."""
        connected = self.transport.names()
        self.places = {name: place for name, place in self.places.items() if place in connected}
        self.undecided = {name: place for name, place in self.undecided.items() if place in connected}
        began = time.monotonic()
        # A site that reconnects is asked at once.
        self.silent = {place: end for place, end in self.silent.items() if place in connected and end > began}
        already_asked = {*self.places.values(), *self.silent}
        request = Message("describe", {"run": self.run, **self.description}).to_bytes()
        new = {place: request for place in connected if place not in already_asked}
        replies = []
        for place, reply in self.transport.exchange(new, self.data.arrival_seconds):
            replies.append((place, reply))
            now = time.monotonic()
            # Not often: each question is two lines of the site's ledger, and people take their time.
            self.silent[place] = now + max(SECONDS_BETWEEN_QUESTIONS, TIMES_LEFT_OUT * (now - began))
        # Sorted, so that of two sites of one name the same is admitted in every run.
        for place, reply in sorted(replies, key=itemgetter(0)):
            self._admit(place, reply)

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message | SiteError]:
        """Send each site its message, by the site's own name; collect replies, or the reasons why there are none."""
        names = {self.places[name]: name for name in messages if name in self.places}
        requests = {place: messages[name].to_bytes() for place, name in names.items()}
        by_name: dict[str, Message | SiteError] = dict.fromkeys(messages, SiteError("is not connected"))
        began = time.monotonic()
        for place, content in self.transport.exchange(requests, self.data.reply_seconds):
            reply = _decoded(content)
            if isinstance(reply, Message) and reply.kind == "failed":
                reply = SiteRefusal(reply.values["reason"])
            by_name[names[place]] = reply
            outcome = reply if isinstance(reply, SiteError) else reply.kind
            print(f"  {names[place]!r} {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
        return by_name

    def dismiss(self) -> None:
        """Tell the sites that the run is over, so that they can free its method and features."""
        request = Message("leave", {"run": self.run}).to_bytes()
        for _ in self.transport.exchange(dict.fromkeys(self.places.values(), request), SECONDS_TO_LEAVE):
            pass

    def has_same_images(self, name: str, digests: Mapping[str, Any]) -> bool:
        """Whether a site has the images and the split that it had when the run began; true for a new site."""
        facts = self.data.facts.get(name)
        return facts is None or (facts.images, facts.split) == (digests["images"], digests["split"])

    def _admit(self, place: str, reply: bytes | SiteError) -> None:
        """Register a site if it is listed, has what is expected and its name is not taken."""
        message = _decoded(reply)
        if isinstance(message, SiteError) or message.kind not in ("described", "refused", "waiting", "failed"):
            tied = (f"The site {name!r}" for name, node in self.data.nodes.items() if node == place)
            reason = message if isinstance(message, SiteError) else "does not describe itself"
            self._report(place, f"{next(tied, 'A site that has just connected')} ({place}) {reason}.")
            return
        values = dict(message.values)
        name = values.pop("name")
        # The name is the site's own claim; data.nodes ties it to the key with which it connected.
        node = self.data.nodes.get(name, place)
        if name not in self.data.sites or node != place:
            self.silent[place] = math.inf
            reason = "which data.sites does not list" if node == place else f"whose node in data.nodes is {node}"
            self._report(place, f"The node {place} calls itself {name!r}, {reason}; it is left out.")
            return
        self.undecided.pop(name, None)
        if message.kind == "waiting":
            self.undecided[name] = place
            self.silent[place] = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
        elif problem := values.get("reason") or self._problem(name, place, SiteFacts(**values)):
            # A site whose name is taken is asked at every look: it replaces the other site once that is gone.
            self.silent[place] = 0 if name in self.places else time.monotonic() + SECONDS_TO_REPAIR
            self.problems[name] = problem
            self._report(place, f"The site {name!r} {problem}.")
        else:
            self.places[name] = place
            self.problems.pop(name, None)
            self.data.facts[name] = SiteFacts(**values)
            self._warn_of_facts(name)

    def _report(self, place: str, line: str) -> None:
        if self.reported.get(place) != line:
            log.warning("%s", line)
        self.reported[place] = line

    def _problem(self, name: str, place: str, facts: SiteFacts) -> str:
        if name in self.places:
            nodes = f"{self.places[name]} and {place}"
            return f"is connected twice, as the nodes {nodes}; give each site its own name, or its node in data.nodes"
        expected = self.data.class_folders
        problems: list[str] = []
        if additional := sorted(set(facts.classes) - set(expected)):
            problems.append(f"has classes that data.class_names does not list: {_listed(additional)}")
        missing = sorted(set(expected) - set(facts.classes))
        if missing and not self.data.allow_missing_classes:
            problems.append(f"has no image of {_listed(missing)}, which data.allow_missing_classes would allow")
        if not facts.counts.get("train"):
            problems.append("has no training image")
        # Another version of fedvlp may compute different results; other libraries only round differently.
        if facts.versions.get("fedvlp") != __version__:
            problems.append(f"has fedvlp {facts.versions.get('fedvlp')}, and the server {__version__}")
        if not self.has_same_images(name, {"images": facts.images, "split": facts.split}):
            problems.append("has other images than when the run began")
        return "; it ".join(problems)

    def _warn_of_facts(self, name: str) -> None:
        """Warn if a site's numbers may differ in rounding, if others may claim its name, or if it outweighs them."""
        facts = self.data.facts[name]
        differing = [
            f"{package} {facts.versions.get(package, 'none')}, not {here}"
            for package, here in versions_here().items()
            if facts.versions.get(package) != here
        ]
        if differing:
            log.warning("The site %r has %s: its numbers may differ in rounding.", name, "; ".join(differing))
        if name not in self.data.nodes:
            place = self.places[name]
            log.warning("Any site may call itself %r; now the node %s does. data.nodes can tie it.", name, place)
        count = facts.counts["train"]
        total = sum(client.num_examples for client in self.data.clients)
        if count < total and count / total > LARGEST_SHARE:
            log.warning(
                "The site %r says it has %.1f %% of all sites' training images, and so decides every mean. If that is "
                "not so, leave it out, or take a trainer.server.aggregation that counts each site once.",
                *(name, 100 * count / total),
            )

    def _wait_for(self, least: int, until_problem: bool) -> None:
        self.look()
        # Without end: sites that are down for a night come back. All that can take part are enough.
        while len(self.places) < min(least, len(self.data.sites) - len(self.problems.keys() - self.places.keys())):
            if until_problem and self.problems:
                return
            self._wait(f"{least} are needed", SECONDS_BETWEEN_LOOKS)

    def _wait(self, why: str, seconds: float) -> None:
        notes = dict.fromkeys(self.undecided, f" ({UNDECIDED})")
        missing = ", ".join(f"{name!r}{notes.get(name, '')}" for name in self.missing())
        waits = f"for {missing}: {len(self.places)} of {len(self.data.sites)} sites are there"
        if self.waiting is not None:
            self.waiting.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.waiting, f"{waits}; {why}")
        if waits != self.last_wait:
            print(f"waiting {waits}; {why}", flush=True)
        self.last_wait = waits
        time.sleep(seconds)
        self.look()

    def _end_waiting(self) -> None:
        self.last_wait = ""
        if self.waiting is not None:
            self.waiting.unlink(missing_ok=True)


def _decoded(reply: bytes | SiteError) -> Message | SiteError:
    try:
        return reply if isinstance(reply, SiteError) else read_reply(reply)
    except SiteError as error:
        return error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
