"""Who is who: which connected site is which client, whether it has what the server expects, and what it was told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvlp.sites.envelope import WireError
from fedvlp.sites.sites_data import SiteFacts, SitesData, options_for_sites
from fedvlp.sites.transport import SiteError, Transport
from fedvlp.sites.versions import versions_here
from fedvlp.sites.wire import Message, read_reply
from fedvlp.utils.errors import UserError
from fedvlp.version import __version__

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_LEAVE = 10.0
log = logging.getLogger(__name__)


@dataclass
class Roster:
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

        Args:
            least: how many are enough.

        Raises:
            UserError: if fewer are there by then, or a site has not what is expected.
        """
        self._wait_until(lambda: not self.missing() or bool(self.problems))
        if self.problems:
            raise UserError(f"{' '.join(self.problems.values())} Nothing was trained.")
        self._check_enough(least)
        if missing := self.missing():
            log.warning("Not there yet: %s. Sites that come later take part from then on.", _listed(missing))

    def regather(self, least: int) -> None:
        """Looks who is there, and waits only while too few are.

        Args:
            least: how many a phase needs.

        Raises:
            UserError: if fewer are there when the time for that is over.
        """
        self._wait_until(lambda: self._there() >= least)
        self._check_enough(least)

    def missing(self) -> list[str]:
        """Returns the names of the sites that are not connected."""
        return [name for name in self.data.sites if name not in self.places]

    def look(self) -> None:
        """Asks those that are newly connected who they are; forgets those that are gone."""
        connected = self.transport.names()
        self.places = {name: place for name, place in self.places.items() if place in connected}
        known = {*self.places.values(), *self.refused}
        request = Message("describe", {"run": self.run, "data": options_for_sites(self.data)}).to_bytes()
        new = {place: request for place in connected if place not in known}
        replies = self.transport.exchange(new, self.data.arrival_seconds) if new else {}
        for place, reply in sorted(replies.items()):
            self._welcome(place, reply)

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message | SiteError]:
        """Sends each site its message and returns the replies; whatever is no reply is why.

        Args:
            messages: by the site's own name.
        """
        sendable = {name: message for name, message in messages.items() if name in self.places}
        requests = {self.places[name]: message.to_bytes() for name, message in sendable.items()}
        replies = self.transport.exchange(requests, self.data.reply_seconds) if requests else {}
        found: dict[str, Message | SiteError] = {}
        for name in messages:
            none = SiteError("is not connected" if name not in sendable else "gave no reply")
            found[name] = _understood(replies.get(self.places.get(name, ""), none))
        return found

    def dismiss(self) -> None:
        """Tells the sites that the run is over; what does not answer at once may keep its method for a while."""
        request = Message("leave", {"run": self.run}).to_bytes()
        self.transport.exchange(dict.fromkeys(self.places.values(), request), SECONDS_TO_LEAVE)

    def _welcome(self, place: str, reply: bytes | SiteError) -> None:
        """Takes a site in, if it is on the list and nobody else is it."""
        message = _understood(reply)
        if isinstance(message, SiteError):
            log.warning("A site that has just connected (%s) %s.", place, message)
            return
        if message.kind != "described":
            log.warning("A site that has just connected (%s) does not say who it is.", place)
            return
        name = message.values["name"]
        facts = _facts(message.values)
        if name not in self.data.sites:
            self.refused.add(place)
            log.warning("A site says that it is %r, which data.sites does not list; it is left out.", name)
        elif problem := self._problem(name, place, facts):
            if name not in self.places:  # else it may take that place once the other one is gone
                self.refused.add(place)
            self.problems[name] = f"The site {name!r} {problem}."
            log.warning("%s", self.problems[name])
        else:
            self.places[name] = place
            self.data.facts[name] = facts
            _compare_versions(name, facts.versions)

    def _problem(self, name: str, place: str, facts: SiteFacts) -> str:
        """Returns what is wrong with a site: its node, classes, images, version, or that it is there twice."""
        if self.data.nodes.get(name, place) != place:
            return f"is connected as the node {place}, which data.nodes does not give it"
        if name in self.places:
            return "is connected twice; give each site a name of its own"
        expected = self.data.class_folders
        problems: list[str] = []
        if additional := sorted(set(facts.classes) - set(expected)):
            problems.append(f"has classes that data.class_names does not list: {_listed(additional)}")
        missing = sorted(set(expected) - set(facts.classes))
        if missing and not self.data.allow_missing_classes:
            problems.append(f"has no image of {_listed(missing)}, which data.allow_missing_classes would allow")
        if not facts.counts.get("train"):
            problems.append("has no training image")
        if facts.versions.get("fedvlp") != __version__:
            problems.append(f"has fedvlp {facts.versions.get('fedvlp')}, and the server {__version__}")
        if not self.has_same_images(name, {"images": facts.images, "split": facts.split}):
            problems.append("has other images than when the run began")
        return "; it ".join(problems)

    def has_same_images(self, name: str, digests: Mapping[str, Any]) -> bool:
        """Whether a site has the images that it had when the run began, split as then; true of one that is new.

        Args:
            name: the site's own name.
            digests: of its images and of its split.
        """
        known = self.data.facts.get(name)
        return known is None or (known.images, known.split) == (digests["images"], digests["split"])

    def _there(self) -> int:
        return len(self.data.sites) - len(self.missing())

    def _wait_until(self, is_enough: Callable[[], bool]) -> None:
        """Looks for sites until it is enough or the time is over; at least once."""
        deadline = time.monotonic() + self.data.arrival_seconds
        self.look()
        while not is_enough() and time.monotonic() < deadline:
            time.sleep(min(SECONDS_BETWEEN_LOOKS, max(0.0, deadline - time.monotonic())))
            self.look()

    def _check_enough(self, least: int) -> None:
        if self._there() < least:
            raise UserError(
                f"{self._there()} of {len(self.data.sites)} sites are there after {self.data.arrival_seconds:g} s, and "
                f"{least} are needed. Not there: {_listed(self.missing())}. Start them, or raise data.arrival_seconds. "
                "A run goes on from its last checkpoint with ckpt_path last."
            )


def _understood(reply: bytes | SiteError) -> Message | SiteError:
    """Returns the reply in some bytes; what is none, or says that there is none, becomes why."""
    if isinstance(reply, SiteError):
        return reply
    try:
        message = read_reply(reply)
    except WireError as error:
        return SiteError(str(error))
    return SiteError(message.values["reason"]) if message.kind == "failed" else message


def _compare_versions(name: str, versions: Mapping[str, str]) -> None:
    """Says where a site's numbers may differ from those of other sites by rounding."""
    own = versions_here()
    other = [f"{package} {versions.get(package, 'none')}, not {own[package]}" for package in own]
    differing = [text for package, text in zip(own, other, strict=True) if versions.get(package) != own[package]]
    if differing:
        log.warning("The site %r has %s: its numbers may differ in rounding.", name, "; ".join(differing))


def _facts(values: Mapping[str, Any]) -> SiteFacts:
    return SiteFacts(
        classes=tuple(values["classes"]),
        counts=values["counts"],
        images=values["images"],
        split=values["split"],
        versions=values["versions"],
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
