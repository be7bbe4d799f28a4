"""Asks the warm process of a site, and starts it where none runs."""

from __future__ import annotations

from pathlib import Path


def ask_site(home: Path, request: bytes) -> bytes:
    """Passes a request to the warm process of a site and returns its reply; starts the process if none runs.

    Args:
        home: the site's folder, with ``site.yaml``.
        request: as it came from the server.

    Returns:
        The reply; one that says why, where the process could not answer.

    Raises:
        UserError: if the folder is no site's.
    """
    raise NotImplementedError
