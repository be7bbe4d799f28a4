"""Which connected site is which client, whether it has what the server expects, and how it is reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvlp.sites.data import SiteFacts, SitesData, options_for_sites
from fedvlp.sites.wire import Message, SiteError, Transport, WireError, read_reply, versions_here
from fedvlp.utils.errors import UserError
from fedvlp.version import __version__

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_LEAVE = 10.0
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

    Attributes:
        places: under which name the transport reaches each site, by the site's own name.
        refused: names of the transport whose sites can't take part.
        problems: why sites that are on the list can't take part, by the site's name.
    """

    transport: Transport
    data: SitesData
    run: str
    places: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def gather(self, least: int) -> None:
        """Waits until all sites are there, or the time for that is over and enough are.

        Raises:
            UserError: if fewer are there by then, or a site lacks what is expected.
        """
        self._wait_until(lambda: not self.missing() or bool(self.problems))
        # Before the first round a mistake can still be mended; later the site is only left out.
        if self.problems:
            raise UserError(f"{' '.join(self.problems.values())} Nothing was trained.")
        self._check_enough(least)
        if missing := self.missing():
            log.warning("Not there yet: %s. Sites that come later take part from then on.", _listed(missing))

    def regather(self, least: int) -> None:
        """Looks for sites that came or left, and waits only while too few are there; a UserError if they stay away."""
        self._wait_until(lambda: len(self.places) >= least)
        self._check_enough(least)

    def missing(self) -> list[str]:
        """Names of the sites that are not connected."""
        return [name for name in self.data.sites if name not in self.places]

    def look(self) -> None:
        """Asks newly connected sites for their descriptions, and forgets those that have left."""
        connected = self.transport.names()
        self.places = {name: place for name, place in self.places.items() if place in connected}
        already_asked = {*self.places.values(), *self.refused}
        request = Message("describe", {"run": self.run, "data": options_for_sites(self.data)}).to_bytes()
        new = {place: request for place in connected if place not in already_asked}
        replies = self.transport.exchange(new, self.data.arrival_seconds) if new else {}
        # Sorted, so that of two sites of one name the same is admitted in every run.
        for place, reply in sorted(replies.items()):
            self._admit(place, reply)

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message | SiteError]:
        """Sends each site its message, by the site's own name; collects the replies, or why there is none."""
        places = {name: self.places[name] for name in messages if name in self.places}
        requests = {place: messages[name].to_bytes() for name, place in places.items()}
        replies = self.transport.exchange(requests, self.data.reply_seconds) if requests else {}
        by_name: dict[str, Message | SiteError] = {}
        for name in messages:
            if name in places:
                by_name[name] = _decoded(replies.get(places[name], SiteError("gave no reply")))
            else:
                by_name[name] = SiteError("is not connected")
        return by_name

    def dismiss(self) -> None:
        """Tells the sites that the run is over; one that does not answer at once may keep its method for a while."""
        # The method and its features can then be freed; a site that misses this frees them when it is prepared again.
        request = Message("leave", {"run": self.run}).to_bytes()
        self.transport.exchange(dict.fromkeys(self.places.values(), request), SECONDS_TO_LEAVE)

    def has_same_images(self, name: str, digests: Mapping[str, Any]) -> bool:
        """Whether a site has the images that it had when the run began, split as then; true of one that is new."""
        facts = self.data.facts.get(name)
        return facts is None or (facts.images, facts.split) == (digests["images"], digests["split"])

    def _admit(self, place: str, reply: bytes | SiteError) -> None:
        """Registers a site, if it is listed, has what is expected and its name is not taken."""
        message = _decoded(reply)
        if isinstance(message, SiteError):
            log.warning("A site that has just connected (%s) %s.", place, message)
            return
        if message.kind != "described":
            log.warning("A site that has just connected (%s) does not describe itself.", place)
            return
        values = dict(message.values)
        name = values.pop("name")
        facts = SiteFacts(**values)
        # The name is the site's own claim; data.nodes ties it to the key with which it connected.
        node = self.data.nodes.get(name, place)
        if name not in self.data.sites or node != place:
            self.refused.add(place)
            reason = "which data.sites does not list" if node == place else f"whose node in data.nodes is {node}"
            log.warning("The node %s calls itself %r, %s; it is left out.", place, name, reason)
        elif problem := self._problem(name, place, facts):
            # Where the name is taken, it is asked again: it may take that place once the other site is gone.
            if name not in self.places:
                self.refused.add(place)
            self.problems[name] = f"The site {name!r} {problem}."
            log.warning("%s", self.problems[name])
        else:
            self.places[name] = place
            self.data.facts[name] = facts
            _compare_versions(name, facts.versions)
            self._warn_of_claims(name)

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

    def _wait_until(self, is_enough: Callable[[], bool]) -> None:
        """Looks for sites until it is enough or the time is over; at least once."""
        deadline = time.monotonic() + self.data.arrival_seconds
        self.look()
        while not is_enough() and time.monotonic() < deadline:
            time.sleep(min(SECONDS_BETWEEN_LOOKS, max(0.0, deadline - time.monotonic())))
            self.look()

    def _check_enough(self, least: int) -> None:
        if len(self.places) < least:
            raise UserError(
                f"{len(self.places)} of {len(self.data.sites)} sites are there after {self.data.arrival_seconds:g} s, "
                f"and {least} are needed. Not there: {_listed(self.missing())}. Start them, or raise "
                "data.arrival_seconds. A run resumes from its last checkpoint with ckpt_path last."
            )


def _decoded(reply: bytes | SiteError) -> Message | SiteError:
    """The reply in some bytes; bytes that hold none, and a reply of the kind ``failed``, become why."""
    if isinstance(reply, SiteError):
        return reply
    try:
        message = read_reply(reply)
    except WireError as error:
        return SiteError(str(error))
    return SiteError(message.values["reason"]) if message.kind == "failed" else message


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
