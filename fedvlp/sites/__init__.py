"""Real sites: clients that train where their images are, and a server that never sees them.

The loop is the federation's own; only its engine is another, which trains and measures at the sites. What carries the
messages is a ``Transport``, of which this folder knows no more than that it carries bytes. Imports commands, core,
data, methods, runs, training and utils; the server also the federation. Each request passes through a process of its
own, so the names below are imported on first access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvlp.sites.daemon import send_request as send_request
    from fedvlp.sites.data import SitesData as SitesData
    from fedvlp.sites.server import serve as serve
    from fedvlp.sites.wire import SiteError as SiteError
    from fedvlp.sites.wire import Transport as Transport
    from fedvlp.sites.worker import Site as Site

_MODULES = {
    "Site": "worker",
    "SiteError": "wire",
    "SitesData": "data",
    "Transport": "wire",
    "send_request": "daemon",
    "serve": "server",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name on first access."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedvlp.sites' has no attribute {name!r}")
    return getattr(import_module(f"fedvlp.sites.{_MODULES[name]}"), name)
