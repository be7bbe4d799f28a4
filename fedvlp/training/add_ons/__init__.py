"""Add-ons: changes to local training that work with any method, listed in ``trainer.local.add_ons``.

An add-on declares the tensors that clients and server exchange for it. Each add-on or family has its own file.
"""

from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound
from fedvlp.training.add_ons.fairness import AFL, QFedAvg
from fedvlp.training.add_ons.fed_dg_ga import FedDGGA
from fedvlp.training.add_ons.fed_dyn import FedDyn
from fedvlp.training.add_ons.fed_nova import FedNova
from fedvlp.training.add_ons.fed_prox import FedProx
from fedvlp.training.add_ons.moon import MOON
from fedvlp.training.add_ons.scaffold import Scaffold

KINDS: tuple[type[AddOn], ...] = (AFL, FedDGGA, FedDyn, FedNova, FedProx, MOON, QFedAvg, Scaffold)
# The add-ons that a config can name. A site builds no others, even if a server asks for them.
PUBLIC = {kind.__name__: kind for kind in KINDS}

__all__ = ["PUBLIC", "AddOn", "LocalContext", "LocalResult", "ServerRound"]
