"""Data sets of several domains, divided among clients. Imports catalog, core and utils.

A data module lists the images of each domain in ``load_domains`` (``files``, ``benchmarks``) and assigns a role and a
client to each image in ``split_parts`` (``splits``, ``protocols``, ``partition``). ``loaders`` makes batches from image
files, decoded images or cached features (``cache``).
"""

from fedvlp.core.protocols import EvaluationSplit
from fedvlp.data.domain_folders import ClassFolders, DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, Images, image_paths
from fedvlp.data.icon_domains.module import IconDomains, IconScenes
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import (
    ByDomain,
    Dirichlet,
    Dispersed,
    FewClasses,
    LongTail,
    Partitioner,
    Pooled,
    QuantitySkew,
    Shards,
)
from fedvlp.data.splits import few_shot, stratified_split
from fedvlp.data.table import ImageTable

__all__ = [
    "ArrayImages",
    "ByDomain",
    "ClassFolders",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "EvaluationSplit",
    "FederatedDataModule",
    "FewClasses",
    "FolderImages",
    "IconDomains",
    "IconScenes",
    "ImageTable",
    "Images",
    "LongTail",
    "Partitioner",
    "Pooled",
    "QuantitySkew",
    "Shards",
    "few_shot",
    "image_paths",
    "stratified_split",
]
