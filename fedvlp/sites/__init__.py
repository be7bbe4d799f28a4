"""Real sites: clients that train where their images are, and a server that never sees them.

The loop is the federation's own; only what trains a client and what measures is another. What carries the messages is
a ``Transport``, of which this folder knows no more than that it carries bytes. Imports core, data, federation, runs,
training and utils, and makes the method that a config names.
"""

from fedvlp.sites.ask import ask_site
from fedvlp.sites.server import serve
from fedvlp.sites.transport import InProcess, SiteError, Transport

__all__ = ["InProcess", "SiteError", "Transport", "ask_site", "serve"]
