"""Data sets of several domains, divided among clients. Imports core, utils and the catalog.

The way of an image: ``load_domains`` of a data module names the images of each domain (``files``); ``split_parts``
gives each image its role and client (``splits``, ``partition``); ``bind`` takes from a module its transform, and what
its frozen parts compute of an image; a ``BatchSource`` then makes the loaders (``loading``), whose batches come from
the files, from the cache of decoded images or from the cache of features (``cache``).
"""

from __future__ import annotations

from fedvlp.data.benchmarks import (
    PACS,
    VLCS,
    Camelyon17,
    DomainNet,
    DomainNet10,
    DomainNet126,
    FedISIC2019,
    OfficeHome,
    TerraIncognita,
)
from fedvlp.data.domain_folders import DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, ImageFiles, Images, image_paths
from fedvlp.data.loading.batch_source import EvaluationSplit
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain, Dirichlet, Dispersed, Partitioner, Pooled, Shards
from fedvlp.data.skew import FewClasses, QuantitySkew
from fedvlp.data.split_rule import few_shot, stratified_split
from fedvlp.data.styled_shapes.module import StyledShapes

__all__ = [
    "PACS",
    "VLCS",
    "ArrayImages",
    "ByDomain",
    "Camelyon17",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "EvaluationSplit",
    "FedISIC2019",
    "FederatedDataModule",
    "FewClasses",
    "FolderImages",
    "ImageFiles",
    "Images",
    "OfficeHome",
    "Partitioner",
    "Pooled",
    "QuantitySkew",
    "Shards",
    "StyledShapes",
    "TerraIncognita",
    "few_shot",
    "image_paths",
    "stratified_split",
]
