"""Real sites: clients that train where their images are, and a server that never sees them.

The loop is the federation's own; only its engine is another, which trains and measures at the sites. What carries the
messages is a ``Transport``, of which this folder knows no more than that it carries bytes. Imports core, data, methods,
runs, training and utils; the server also the federation. What passes a request to a site's warm process starts anew for
each, so the names below are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvlp.sites.ask import ask_site as ask_site
    from fedvlp.sites.server import serve as serve
    from fedvlp.sites.site import Site as Site
    from fedvlp.sites.sites_data import SitesData as SitesData
    from fedvlp.sites.transport import InProcess as InProcess
    from fedvlp.sites.transport import SiteError as SiteError
    from fedvlp.sites.transport import Transport as Transport

_MODULES = {
    "InProcess": "transport",
    "Site": "site",
    "SiteError": "transport",
    "SitesData": "sites_data",
    "Transport": "transport",
    "ask_site": "ask",
    "serve": "server",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedvlp.sites' has no attribute {name!r}")
    return getattr(import_module(f"fedvlp.sites.{_MODULES[name]}"), name)
