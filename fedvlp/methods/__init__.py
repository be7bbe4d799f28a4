"""The methods, one file or folder each. Importing this package imports all of them, so that configs can name them."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
