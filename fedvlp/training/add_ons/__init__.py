"""What changes local training whatever the method: what is exchanged for it, and what the server makes of it.

``trainer.local.add_ons`` lists those that are at work.
"""

from fedvlp.training.add_ons.base import AddOn, Finished, LocalContext, ServerRound
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.add_ons.moon import MOON
from fedvlp.training.add_ons.scaffold import Scaffold

# Those that can be named in a config; a site makes no other, whatever a server asks for.
PUBLIC = {kind.__name__: kind for kind in (FedDGGA, FedDyn, FedNova, FedProx, MOON, Scaffold)}

__all__ = [
    "MOON",
    "PUBLIC",
    "AddOn",
    "FedDGGA",
    "FedDyn",
    "FedNova",
    "FedProx",
    "Finished",
    "LocalContext",
    "Scaffold",
    "ServerRound",
]
