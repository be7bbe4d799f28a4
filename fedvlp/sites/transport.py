"""What carries messages between the server and its sites, and the one that carries them within a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

Handler = Callable[[bytes], bytes]
"""From a request to its reply, such as ``Site.handle``."""


class SiteError(Exception):
    """Why there is no reply of a site; the text follows on the site's name, such as ``did not answer in 60 s``."""


@runtime_checkable
class Transport(Protocol):
    """Carries messages between the server and its sites; what is in them it need not know."""

    def names(self) -> list[str]:
        """Returns the names under which connected sites can be reached, in any order; they may change with time."""
        ...

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | SiteError]:
        """Sends each site its request, all at the same time, and returns what came back.

        Args:
            requests: by the site's name, as ``names`` has it.
            timeout: seconds to wait for all replies together, above 0.

        Returns:
            One entry for each request: the reply, or why there is none (it died, is too late or unknown).
        """
        ...


class InProcess:
    """Sites in this process, one after another: for tests, and to try a deployment without a network.

    Args:
        sites: what answers, by name; more may be added and some taken away at any time.
    """

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self.sites = dict(sites)

    def names(self) -> list[str]:
        """Returns the names of the sites."""
        return list(self.sites)

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | SiteError]:
        """Asks one site after another; what a site raises is why it gave no reply."""
        return {name: self._asked(name, request) for name, request in requests.items()}

    def _asked(self, name: str, request: bytes) -> bytes | SiteError:
        if name not in self.sites:
            return SiteError("is not connected")
        try:
            return self.sites[name](request)
        except SiteError as error:
            return error
