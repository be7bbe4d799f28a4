"""Data sets of several domains, divided among clients. Imports catalog, core and utils.

A data module lists the images of each domain in ``load_domains`` (``files``, ``benchmarks``) and assigns a role and a
client to each image in ``split_parts`` (``splits``, ``protocols``, ``partition``). ``loaders`` makes batches from image
files, decoded images or cached features (``cache``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
