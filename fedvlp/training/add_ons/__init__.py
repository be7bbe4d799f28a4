"""Add-ons: changes to local training that work with any method, listed in ``trainer.local.add_ons``.

An add-on declares the tensors that clients and server exchange for it. Each add-on or family has its own file.
"""

from dataclasses import is_dataclass
from importlib import import_module
from pkgutil import iter_modules

from fedvlp.training.add_ons.base import AddOn, LocalContext, LocalResult, ServerRound


def _public_add_ons() -> dict[str, type[AddOn]]:
    public: dict[str, type[AddOn]] = {}
    for module in iter_modules(__path__, f"{__name__}."):
        for kind in vars(import_module(module.name)).values():
            if isinstance(kind, type) and issubclass(kind, AddOn) and kind.__module__ == module.name:
                public[kind.__name__] = kind
    # The add-ons in base.py belong to other options; a base class of add-ons is not a dataclass.
    return {name: kind for name, kind in public.items() if kind.__module__ != AddOn.__module__ and is_dataclass(kind)}


# The add-ons that a config can name. A site builds no others, even if a server asks for them.
PUBLIC = _public_add_ons()

__all__ = ["PUBLIC", "AddOn", "LocalContext", "LocalResult", "ServerRound"]
