"""Which connected site is which client, whether it has what the server expects, and how it is reached."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedvlp.sites.data import SitesData
from fedvlp.sites.wire import (
    Message,
    SiteError,
    SiteFacts,
    SiteRefusal,
    Transport,
    WireError,
    read_reply,
    versions_here,
)
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text
from fedvlp.version import __version__

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_QUESTIONS = 15.0
"""To a site whose keeper has not yet approved the run, or that gave no usable answer."""
SECONDS_TO_REPAIR = 300.0
"""Time after which a site that could not take part is asked again."""
UNDECIDED = "its keeper has not approved the run yet"
SECONDS_TO_LEAVE = 10.0
TIMES_LEFT_OUT = 10
"""For how many times as long as a node let the server wait for nothing it is not asked again."""
LARGEST_SHARE = 0.9
"""Of all training images so far: a site that says it has more is named."""
log = logging.getLogger(__name__)


@dataclass
class SiteRegistry:
    """The connected sites.

    Args:
        transport: reaches them.
        data: lists them, and takes what they say of themselves.
        run: the run's id, under which sites keep what is theirs.
        description: what the run is, the fields of ``wire.Description``.
        waiting: file that says for whom the server waits, written anew as long as it does; none if None.

    Attributes:
        said: for whom it was last said to wait.
        places: under which name the transport reaches each site, by the site's own name.
        problems: why sites that are on the list can't or will not take part, by the site's name.
        reported: the last warning about each place.
        silent: until when a place is not asked again, because its site did not answer or can't take part.
        undecided: places of sites whose keeper has not yet approved the run, by the site's name.
    """

    transport: Transport
    data: SitesData
    run: str
    description: Mapping[str, Any]
    waiting: Path | None = None
    said: str = ""
    places: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)

    def gather(self, least: int) -> None:
        """Waits until enough sites are there, and then for the others, no longer than ``data.arrival_seconds``.

        Raises:
            UserError: if a site lacks what is expected.
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
        """Looks for sites that came or left, and waits while too few are there."""
        self._wait_for(least, until_problem=False)
        self._end_waiting()

    def missing(self) -> list[str]:
        """Names of the sites that are not connected."""
        return [name for name in self.data.sites if name not in self.places]

    def look(self) -> None:
        """Asks newly connected sites for their descriptions, and forgets those that have left."""
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
        """Sends each site its message, by the site's own name; collects the replies, or why there is none."""
        names = {self.places[name]: name for name in messages if name in self.places}
        requests = {place: messages[name].to_bytes() for place, name in names.items()}
        by_name: dict[str, Message | SiteError] = dict.fromkeys(messages, SiteError("is not connected"))
        began = time.monotonic()
        for place, content in self.transport.exchange(requests, self.data.reply_seconds):
            reply = _decoded(content)
            if isinstance(reply, Message) and reply.kind == "failed":
                reply = SiteRefusal(reply.values["reason"])
            by_name[names[place]] = reply
            said = reply if isinstance(reply, SiteError) else reply.kind
            self.say(f"  {names[place]!r} {said} ({time.monotonic() - began:.1f} s)")
        return by_name

    def dismiss(self) -> None:
        """Tells the sites that the run is over; one that does not answer at once may keep its method for a while."""
        # The method and its features can then be freed; a site that misses this frees them when it is prepared again.
        request = Message("leave", {"run": self.run}).to_bytes()
        for _ in self.transport.exchange(dict.fromkeys(self.places.values(), request), SECONDS_TO_LEAVE):
            pass

    def has_same_images(self, name: str, digests: Mapping[str, Any]) -> bool:
        """Whether a site has the images that it had when the run began, split as then; true of one that is new."""
        facts = self.data.facts.get(name)
        return facts is None or (facts.images, facts.split) == (digests["images"], digests["split"])

    def _admit(self, place: str, reply: bytes | SiteError) -> None:
        """Register a site if it is listed, has what is expected and its name is not taken; report once why not."""
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
            facts = self.data.facts[name] = SiteFacts(**values)
            _compare_versions(name, facts.versions)
            self._warn_of_claims(name)

    def _report(self, place: str, line: str) -> None:
        """Log what is wrong with a site, unless the same was logged when it was asked before."""
        if self.reported.get(place) != line:
            log.warning("%s", line)
        self.reported[place] = line

    def _problem(self, name: str, place: str, facts: SiteFacts) -> str:
        """What is wrong with a site: its classes, images, version, or that it is there twice."""
        if name in self.places:
            return (
                f"is connected twice, as the nodes {self.places[name]} and {place}; give each site a name of its own, "
                "or each name its node in data.nodes"
            )
        expected = self.data.class_folders
        problems: list[str] = []
        if additional := sorted(set(facts.classes) - set(expected)):
            problems.append(f"has classes that data.class_names does not list: {_listed(additional)}")
        missing = sorted(set(expected) - set(facts.classes))
        if missing and not self.data.allow_missing_classes:
            problems.append(f"has no image of {_listed(missing)}, which data.allow_missing_classes would allow")
        if not facts.counts.get("train"):
            problems.append("has no training image")
        # Another version may compute something else; other libraries only round differently.
        if facts.versions.get("fedvlp") != __version__:
            problems.append(f"has fedvlp {facts.versions.get('fedvlp')}, and the server {__version__}")
        if not self.has_same_images(name, {"images": facts.images, "split": facts.split}):
            problems.append("has other images than when the run began")
        return "; it ".join(problems)

    def _warn_of_claims(self, name: str) -> None:
        """Warns where what a site says of itself decides more than it should: its name or its weight."""
        if name not in self.data.nodes:
            place = self.places[name]
            log.warning("Any site may call itself %r; now the node %s does. data.nodes can tie it.", name, place)
        count = self.data.facts[name].counts["train"]
        total = sum(client.num_examples for client in self.data.clients)
        if count < total and count / total > LARGEST_SHARE:
            log.warning(
                "The site %r says it has %.1f %% of all sites' training images, and so decides every mean. If that is "
                "not so, leave it out, or take a trainer.server.aggregation that counts each site once.",
                *(name, 100 * count / total),
            )

    def _wait_for(self, least: int, until_problem: bool) -> None:
        """Look for sites, at least once, until enough are there: as many as are needed, or all that can take part."""
        self.look()
        # No end: sites that are down for a night come back, and who is tired of waiting stops the run.
        while len(self.places) < min(least, len(self.data.sites) - len(self.problems.keys() - self.places.keys())):
            if until_problem and self.problems:
                return
            self._wait(f"{least} are needed", SECONDS_BETWEEN_LOOKS)

    def _wait(self, why: str, seconds: float) -> None:
        """Says for whom the server waits, to the file each time and else where something has changed; looks again."""
        notes = dict.fromkeys(self.undecided, f" ({UNDECIDED})")
        missing = ", ".join(f"{name!r}{notes.get(name, '')}" for name in self.missing())
        waits = f"for {missing}: {len(self.places)} of {len(self.data.sites)} sites are there"
        if self.waiting is not None:
            self.waiting.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.waiting, f"{waits}; {why}")
        if waits != self.said:
            self.say(f"waiting {waits}; {why}")
        self.said = waits
        time.sleep(seconds)
        self.look()

    def _end_waiting(self) -> None:
        """Takes back what was said of waiting."""
        self.said = ""
        if self.waiting is not None:
            self.waiting.unlink(missing_ok=True)

    def say(self, line: str) -> None:
        """Prints a line at once."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _decoded(reply: bytes | SiteError) -> Message | SiteError:
    """The reply in some bytes, or why they hold none."""
    if isinstance(reply, SiteError):
        return reply
    try:
        return read_reply(reply)
    except WireError as error:
        return SiteError(str(error))


def _compare_versions(name: str, versions: Mapping[str, str]) -> None:
    """Warns where a site's numbers may differ from those of other sites by rounding."""
    differing: list[str] = []
    for package, here in versions_here().items():
        if versions.get(package) != here:
            differing.append(f"{package} {versions.get(package, 'none')}, not {here}")
    if differing:
        log.warning("The site %r has %s: its numbers may differ in rounding.", name, "; ".join(differing))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
