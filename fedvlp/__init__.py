"""Federated prompt learning of vision-language models: one frozen CLIP, one federation loop, one file a method.

Glossary:
    client, server      who trains on its own data, and who combines what the clients send
    round, phase        a round is a list of phases; in each, clients train and send, and the server combines
    cohort              the clients sampled for a round
    shared, personal    tensors that clients download, and tensors that stay on the client
    deployed            what is evaluated: the shared tensors, or an average of them over rounds
    source, held-out    domains that clients have, and domains that nobody trains on
    prompt, expert      learned vectors in front of a class name, and one of several prompts that are mixed

Axes of tensors, in docstrings, shape annotations and einsums:
    B images of a batch     P tokens of an image    E experts       L prompt length     C classes
    D text width            W image-token width     d width of the joint features       V image height and width
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedvlp.utils.errors import UserError
from fedvlp.version import __version__

if TYPE_CHECKING:
    from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, load_clip
    from fedvlp.core.module import FederatedModule, Phase, RoundContext
    from fedvlp.core.state import Client, ClientUpdate, ServerState, State
    from fedvlp.data import (
        PACS,
        VLCS,
        ByDomain,
        Dirichlet,
        Dispersed,
        DomainFolders,
        DomainNet,
        DomainNet10,
        DomainNet126,
        FederatedDataModule,
        OfficeHome,
        Shards,
        StyledShapes,
        TerraIncognita,
    )
    from fedvlp.federation import Federation
    from fedvlp.methods import ADAPT, PLAN, TRIP, DiPrompT, FedDPT, PromptFL, SingleDomain, ZeroShotCLIP

_HOMES = {
    "fedvlp.clip": ("CLIP", "CLIPSpec", "PromptedTextEncoder", "load_clip"),
    "fedvlp.data": (
        "ByDomain",
        "Dirichlet",
        "Dispersed",
        "DomainFolders",
        "DomainNet",
        "DomainNet10",
        "DomainNet126",
        "FederatedDataModule",
        "OfficeHome",
        "PACS",
        "Shards",
        "StyledShapes",
        "TerraIncognita",
        "VLCS",
    ),
    "fedvlp.federation": ("Federation",),
    "fedvlp.methods": ("ADAPT", "PLAN", "TRIP", "DiPrompT", "FedDPT", "PromptFL", "SingleDomain", "ZeroShotCLIP"),
    "fedvlp.core.module": ("FederatedModule", "Phase", "RoundContext"),
    "fedvlp.core.state": ("Client", "ClientUpdate", "ServerState", "State"),
}

__all__ = [
    "ADAPT",
    "CLIP",
    "PACS",
    "PLAN",
    "TRIP",
    "VLCS",
    "ByDomain",
    "CLIPSpec",
    "Client",
    "ClientUpdate",
    "DiPrompT",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "FedDPT",
    "FederatedDataModule",
    "FederatedModule",
    "Federation",
    "OfficeHome",
    "Phase",
    "PromptFL",
    "PromptedTextEncoder",
    "RoundContext",
    "ServerState",
    "Shards",
    "SingleDomain",
    "State",
    "StyledShapes",
    "TerraIncognita",
    "UserError",
    "ZeroShotCLIP",
    "__version__",
    "load_clip",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for, so that ``import fedvlp`` does not wait for torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'fedvlp' has no attribute {name!r}")
